// Counts of the work of a launch whose results reach its output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "emulator/memory.h"

namespace flash_ladder::emulator {

/// Bytes of global memory.
struct MemoryRange {
  Address begin = 0;
  std::size_t size = 0;
};

/// Work whose result reaches the output, which is what Options::outputs contains when a CTA ends. An instruction
/// counts if a value that it computed, loaded or copied is among those from which the output was computed.
/// docs/virtual_gpu_internals.md ("Which work counts") says where this is coarse.
struct UsefulWork {
  std::uint64_t mma_instructions = 0, shuffle_instructions = 0, shared_load_instructions = 0;  // of warps
  std::uint64_t mma_flops = 0;
  std::uint64_t exponentials = 0;       // ex2, of single lanes
  std::uint64_t ldmatrix_bytes = 0;     // what fragments receive
  std::uint64_t shared_load_bytes = 0;  // of ld.shared
  std::uint64_t shared_store_bytes = 0;
  std::uint64_t copy_bytes = 0;              // of cp.async
  std::uint64_t copy_bytes_of_one_warp = 0;  // of these, the bytes of the warp that copies most, summed over CTAs
  std::uint64_t global_load_bytes = 0;       // of ld.global
  // Of ld.global and cp.async, the bytes of the warp that reads most in the whole launch: what the others wait for in the end.
  std::uint64_t most_bytes_of_a_warp = 0;

  /// Entry i: of the mmas, those whose B was loaded by ldmatrix with at least i of the warp's other mmas in between.
  std::array<std::uint64_t, 17> mmas_loaded_ahead{};
  /// Loads from shared memory that received bytes of asynchronous copies, and the bytes of copies that were then still
  /// in flight, summed over these loads. If the warp copies itself, the copies in flight are its own, times the number
  /// of warps that copy: how far other warps have got does not matter. Therefore, loads of warps that do not copy count
  /// only if no warp reads beside copying.
  std::uint64_t loads_of_copies = 0, bytes_in_flight = 0;

  /// Over the exponentials (of warps): the bytes that the warp had loaded from global memory before, and all that it
  /// loads. A softmax that is computed online begins early; one that needs all scores first begins late.
  std::uint64_t bytes_before_exponentials = 0, bytes_around_exponentials = 0;

  UsefulWork& operator+=(const UsefulWork& other);
  bool operator==(const UsefulWork&) const = default;
};

/// Calls visit(name, number) for each number of UsefulWork; the array is left out. All are sums over CTAs but
/// most_bytes_of_a_warp, which is a maximum.
template <typename SomeWork, typename Visit>
void for_each_number(SomeWork& work, Visit visit) {
  visit("mma_instructions", work.mma_instructions);
  visit("shuffle_instructions", work.shuffle_instructions);
  visit("shared_load_instructions", work.shared_load_instructions);
  visit("mma_flops", work.mma_flops);
  visit("exponentials", work.exponentials);
  visit("ldmatrix_bytes", work.ldmatrix_bytes);
  visit("shared_load_bytes", work.shared_load_bytes);
  visit("shared_store_bytes", work.shared_store_bytes);
  visit("copy_bytes", work.copy_bytes);
  visit("copy_bytes_of_one_warp", work.copy_bytes_of_one_warp);
  visit("global_load_bytes", work.global_load_bytes);
  visit("most_bytes_of_a_warp", work.most_bytes_of_a_warp);
  visit("loads_of_copies", work.loads_of_copies);
  visit("bytes_in_flight", work.bytes_in_flight);
  visit("bytes_before_exponentials", work.bytes_before_exponentials);
  visit("bytes_around_exponentials", work.bytes_around_exponentials);
}

}  // namespace flash_ladder::emulator
