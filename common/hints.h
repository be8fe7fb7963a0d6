// Hints: they never change a value, only when something happens or where it is kept.
#pragma once

namespace flash_ladder {

/// Prefetches the cache line that contains this address of global memory into L2, without waiting. PTX does not specify
/// the size of a line; it is 128 bytes on all GPUs so far. PTX ISA, "prefetch".
__device__ inline void prefetch_to_L2(const void* gmem) { asm volatile("prefetch.global.L2 [%0];" ::"l"(gmem)); }

/// Returns x but hides how it was computed, without an instruction. So the first half of nvcc, which emits PTX, cannot
/// recompute it again and again to free its register. The second half, ptxas, is not bound by this.
__device__ inline int keep_in_register(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace flash_ladder
