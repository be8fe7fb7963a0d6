// Numbers in global memory by which one CTA tells others what it has done. PTX ISA, "ld", "st" and "Memory Consistency Model".
#pragma once

namespace flash_ladder {

/// Loads a number. If another CTA stored it with store_release(), what that CTA did before is visible to this thread from here on.
__device__ inline int load_acquire(const int* gmem) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(gmem) : "memory");
  return value;
}

/// Stores a number, after everything that this thread has done, or other threads have done before a barrier with it.
__device__ inline void store_release(int* gmem, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(gmem), "r"(value) : "memory");
}

}  // namespace flash_ladder
