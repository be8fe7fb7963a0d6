// What nvcc puts into an object beside the host code: a container with machine code for some architectures and PTX for
// others.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace flash_ladder::emulator::runtime {

/// The PTX for compute_80 in the data that nvcc passes to __cudaRegisterFatBinary; if there is none and an `sm` of 90
/// can run it, the PTX for compute_90 or compute_90a. The program owns the text.
///
/// PTX for compute_90 is the same for code that sm_80 can run, but from compute_100 on another compiler generates it,
/// so no other PTX is accepted. Throws std::runtime_error if it is missing or compressed (the message says what there
/// is instead, and which options to compile with), and if a length in the container points outside it.
std::string_view device_ptx(const void* fat_binary, int sm);

/// Mangled kernel name → registers per thread, from the machine code that an `sm` of host/sm_limits.h would run. Empty
/// if the container has none for it, or only compressed code.
std::map<std::string, int> register_counts(const void* fat_binary, int sm);

}  // namespace flash_ladder::emulator::runtime
