// What nvcc puts into an object beside the host code: a container with machine code for some architectures and PTX for others.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace flash_ladder::emulator::runtime {

/// The PTX for compute_80 in what nvcc passes to __cudaRegisterFatBinary, or, where there is none and an `sm` of 90 can run it, that
/// for compute_90 or compute_90a. The text belongs to the program.
///
/// The PTX for compute_90 is the same for code that sm_80 can run, and from compute_100 on another compiler makes it, so that no
/// other will do. Throws std::runtime_error when it is missing or compressed: what there is instead, and the
/// options to compile with; and when a length in the container leads out of it.
std::string_view device_ptx(const void* fat_binary, int sm);

/// Mangled kernel name → registers per thread, from the machine code that an `sm` of host/sm_limits.h would run. Empty where the
/// container has none for it, or only compressed code.
std::map<std::string, int> register_counts(const void* fat_binary, int sm);

}  // namespace flash_ladder::emulator::runtime
