// Operations of single warpgroups of a CTA: registers and barriers of their own, and a store for fragments.
#pragma once

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// The warp's number in the CTA, computed so that the compiler knows it to be the same in all lanes.
__device__ inline int uniform_warp_id() { return __shfl_sync(0xffffffff, threadIdx.x / 32, 0); }

/// The start of shared memory, as an address that the compiler keeps in a register shared by all lanes; otherwise, it
/// reads the address from the hardware again wherever it is used. PTX ISA, "shfl.sync".
__device__ inline unsigned char* uniform_smem(unsigned char* smem) {
  return static_cast<unsigned char*>(__cvta_shared_to_generic(__shfl_sync(0xffffffff, smem_address(smem), 0)));
}

/// Releases registers: each thread of the warpgroup keeps kRegisters, a multiple of 8 from 24 to 256. The kernel's
/// __launch_bounds__ determine how many it has before. PTX ISA, "setmaxnreg", .dec.
template <int kRegisters>
__device__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits until other warpgroups have released enough; then each thread has kRegisters. PTX ISA, "setmaxnreg", .inc.
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// A __syncthreads() for `threads` threads of the CTA, with the barrier of this number: 1 to 15, since 0 belongs to
/// __syncthreads(). PTX ISA, "barrier", bar.sync.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Arrives at such a barrier without waiting for the other threads. PTX ISA, "barrier", bar.arrive.
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Writes four 8×8 matrices of 16-bit elements, as ldmatrix_x4 (common/ptx.h) reads them: lanes 8i … 8i+7 supply the
/// addresses of the rows of matrix i. PTX ISA, "stmatrix".
__device__ inline void stmatrix_x4(void* smem, std::uint32_t R0, std::uint32_t R1, std::uint32_t R2, std::uint32_t R3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(smem)), "r"(R0),
               "r"(R1), "r"(R2), "r"(R3)
               : "memory");
}

}  // namespace flash_ladder
