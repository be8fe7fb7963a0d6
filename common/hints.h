// Hints: they change no value, only when something happens or where it is kept.
#pragma once

namespace flash_ladder {

/// Asks for the cache line that this address of global memory lies in to come to L2, and waits for nothing. The size of a line
/// is not PTX's to say; it is 128 bytes on all GPUs so far. PTX ISA, "prefetch".
__device__ inline void prefetch_to_L2(const void* gmem) { asm volatile("prefetch.global.L2 [%0];" ::"l"(gmem)); }

/// x, without a trace of how it was computed; no instruction. So the first half of nvcc, which makes PTX, cannot compute it
/// again and again to have its register for something else. The second half, ptxas, is not bound.
__device__ inline int keep_in_register(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace flash_ladder
