#include "emulator/gpu/launch_limits.h"

#include <fmt/format.h>

#include <stdexcept>

#include "emulator/decode/instruction.h"
#include "host/known_sms.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMaxLocalBytes = 512 * kKiB;  // per thread, on every GPU
constexpr std::uint32_t kMostCtasOfCluster = 16;

}  // namespace

Dim3 cluster_of(const Kernel& kernel, const LaunchConfig& config) {
  if (config.cluster.x != 0) return config.cluster;
  const auto [x, y, z] = kernel.compiled().cluster;
  return {x, y, z};
}

const SmLimits& known_limits(int sm) {
  const SmLimits* limits = sm_limits(sm);
  if (limits == nullptr)
    throw std::invalid_argument(fmt::format("sm_{}: the virtual GPU knows only the limits of {}", sm, known_sms()));
  return *limits;
}

std::string refusal(const Kernel& kernel, const LaunchConfig& config, const Options& options) {
  const SmLimits& limits = known_limits(options.sm);
  const Dim3 &grid = config.grid, &block = config.block;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const auto size = [](const Dim3& d) { return fmt::format("({}, {}, {})", d.x, d.y, d.z); };
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0) {
    return fmt::format("a grid of {} blocks of {} threads: no dimension can be 0", size(grid), size(block));
  }
  if (block.x > kMaxBlockX || block.y > kMaxBlockY || block.z > kMaxBlockZ || threads > kMaxThreadsPerCta) {
    return fmt::format("blocks of {} = {} threads; sm_{} allows {}, at most {}", size(block), threads, options.sm,
                       kMaxThreadsPerCta, size({kMaxBlockX, kMaxBlockY, kMaxBlockZ}));
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    return fmt::format("a grid of {} blocks; the limits are {}", size(grid), size({kMaxGridX, kMaxGridYZ, kMaxGridYZ}));
  }
  const Dim3 cluster = cluster_of(kernel, config);
  if (const std::uint64_t ctas = size_of(cluster); ctas == 0 || ctas > kMostCtasOfCluster)
    return fmt::format("clusters of {} blocks; there can be 1 to {} in a cluster", size(cluster), kMostCtasOfCluster);
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    return fmt::format("a grid of {} blocks, which is not a multiple of clusters of {}", size(grid), size(cluster));
  const auto most = kernel.max_block();
  if (most[0] != 0 && threads > std::uint64_t{most[0]} * most[1] * most[2]) {
    return fmt::format("blocks of {} threads; the kernel was compiled for at most {} (__launch_bounds__)", threads,
                       std::uint64_t{most[0]} * most[1] * most[2]);
  }
  const auto required = kernel.required_block();
  if (required[0] != 0 && (required[0] != block.x || required[1] != block.y || required[2] != block.z)) {
    return fmt::format("blocks of {} threads; the kernel was compiled for ({}, {}, {}) only", size(block), required[0],
                       required[1], required[2]);
  }
  const std::size_t shared = kernel.static_shared_bytes() + config.dynamic_shared_bytes;
  if (shared > static_cast<std::size_t>(limits.smem_per_cta_bytes)) {
    return fmt::format("{} bytes of shared memory per block ({} static, {} dynamic); sm_{} has {}", shared,
                       kernel.static_shared_bytes(), config.dynamic_shared_bytes, options.sm,
                       limits.smem_per_cta_bytes);
  }
  if (kernel.local_bytes() > kMaxLocalBytes) {
    return fmt::format("{} bytes of local memory per thread; there are at most {}", kernel.local_bytes(),
                       kMaxLocalBytes);
  }
  if (options.registers_per_thread > 0) {
    const auto registers = static_cast<std::uint32_t>(options.registers_per_thread);
    // Allocated to whole warps, 256 at a time.
    const std::uint64_t per_warp = (std::uint64_t{registers} * 32 + 255) / 256 * 256;
    const std::uint64_t total = (threads + 31) / 32 * per_warp;
    if (registers > kMaxRegistersPerThread || total > static_cast<std::uint64_t>(limits.registers)) {
      return fmt::format("{} registers per thread, {} for the block; sm_{} has {} per thread and {} in all", registers,
                         total, options.sm, kMaxRegistersPerThread, limits.registers);
    }
  }
  return {};
}

}  // namespace flash_ladder::emulator
