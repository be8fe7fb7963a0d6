// The limits of the SMs for which the versions are compiled: the only list of compute capabilities, used by the
// registration of a version, the static study and the virtual GPU. Nothing here needs CUDA.
#pragma once

#include <array>

namespace flash_ladder {

/// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the last two describe the best-known GPU.
struct SmLimits {
  int compute_capability;
  int registers;           // 32-bit registers per SM
  int threads;             // per SM
  int ctas;                // per SM
  int smem_bytes;          // per SM
  int smem_per_cta_bytes;  // the most that one CTA can have, with cudaFuncAttributeMaxDynamicSharedMemorySize
  int code;                // the machine code that it runs, among those that are built
  int sm_count;            // SMs of an A100, RTX 3090, RTX 4090, H100
  int l2_bytes;            // of the same
};

inline constexpr std::array<SmLimits, 4> kSmLimits = {{
    {.compute_capability = 80,
     .registers = 65536,
     .threads = 64 * 32,
     .ctas = 32,
     .smem_bytes = 164 * 1024,
     .smem_per_cta_bytes = 163 * 1024,
     .code = 80,
     .sm_count = 108,
     .l2_bytes = 40 << 20},
    {.compute_capability = 86,
     .registers = 65536,
     .threads = 48 * 32,
     .ctas = 16,
     .smem_bytes = 100 * 1024,
     .smem_per_cta_bytes = 99 * 1024,
     .code = 80,
     .sm_count = 82,
     .l2_bytes = 6 << 20},
    {.compute_capability = 89,
     .registers = 65536,
     .threads = 48 * 32,
     .ctas = 24,
     .smem_bytes = 100 * 1024,
     .smem_per_cta_bytes = 99 * 1024,
     .code = 80,
     .sm_count = 128,
     .l2_bytes = 72 << 20},
    {.compute_capability = 90,
     .registers = 65536,
     .threads = 64 * 32,
     .ctas = 32,
     .smem_bytes = 228 * 1024,
     .smem_per_cta_bytes = 227 * 1024,
     .code = 90,
     .sm_count = 132,
     .l2_bytes = 50 << 20},
}};

/// These limits are the same for all compute capabilities.
constexpr int kMaxThreadsPerCta = 1024;
constexpr int kMaxBlockX = 1024, kMaxBlockY = 1024, kMaxBlockZ = 64;
constexpr int kMaxGridX = 2147483647, kMaxGridYZ = 65535;
constexpr int kMaxRegistersPerThread = 255;
constexpr int kReservedSmemBytes = 1024;           // of every CTA, reserved by the system
constexpr int kSmemBytesWithoutOptIn = 48 * 1024;  // per CTA, unless smem_per_cta_bytes is requested

/// The default limits: those of the GPUs to which the ladder's predictions, its log and profiles/ refer.
constexpr int kDefaultSm = 90;

/// The compute capability of Hopper's own instructions, sm_90a; nothing older or newer has them.
constexpr int kHopperSm = 90;
static_assert(kDefaultSm == kHopperSm,
              "without --sm, any version is shown for kDefaultSm, and so has to have code for it");

/// nullptr for a compute capability that is not in the list.
constexpr const SmLimits* sm_limits(int compute_capability) {
  for (const SmLimits& limits : kSmLimits)
    if (limits.compute_capability == compute_capability) return &limits;
  return nullptr;
}

}  // namespace flash_ladder
