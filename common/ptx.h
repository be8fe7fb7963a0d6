// One function per PTX instruction that the kernels use explicitly. Each comment says which elements the lanes of the
// warp hold, because a kernel has to know this, and names the section of the PTX ISA that defines the instruction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace flash_ladder {

/// A pointer to shared memory in the form that the instructions below need: a 32-bit address in the state space .shared.
__device__ inline std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 2 to the power x, within 2 ulp; a subnormal result becomes 0. This is the only exponential that the hardware has.
/// PTX ISA, "ex2", .approx.ftz.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// D = A B + D for one 16×8 tile of D and 16 values of k; the whole warp takes part.
/// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". With group = lane_id / 4 and
/// pair = lane_id % 4 * 2, a lane holds
///
///   A [16 m][16 k]  A[0]: row group,   k pair, pair+1      A[2]: row group,   k pair+8, pair+9
///                   A[1]: row group+8, k pair, pair+1      A[3]: row group+8, k pair+8, pair+9
///   B [16 k][8 n]   B[0]: k pair, pair+1, column group     B[1]: k pair+8, pair+9, column group
///   D [16 m][8 n]   D[0], D[1]: row group, columns pair, pair+1     D[2], D[3]: row group+8, columns pair, pair+1
///
/// A register of A or B holds two 16-bit elements, the lower k in the lower half; a register of D holds a float.
template <typename Element>
__device__ void mma_m16n8k16(float (&D)[4], const std::uint32_t (&A)[4], const std::uint32_t (&B)[2]);

template <>
__device__ inline void mma_m16n8k16<__half>(float (&D)[4], const std::uint32_t (&A)[4], const std::uint32_t (&B)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])
      : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
}

template <>
__device__ inline void mma_m16n8k16<__nv_bfloat16>(float (&D)[4], const std::uint32_t (&A)[4],
                                                   const std::uint32_t (&B)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(D[0]), "+f"(D[1]), "+f"(D[2]), "+f"(D[3])
      : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
}

/// Starts copying 16 bytes from global to shared memory, bypassing the registers and L1 (.cg); both addresses are
/// multiples of 16. The bytes have arrived after a cp_async_wait by this thread. PTX ISA, "cp.async".
__device__ inline void cp_async_16(void* smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(smem)), "l"(gmem) : "memory");
}

/// Ends a group: all of this thread's cp_async since the previous one. PTX ISA, "cp.async.commit_group".
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` of this thread's groups, the newest, are still in flight. It says nothing about other
/// threads' copies: a __syncthreads() must follow before their bytes are read. PTX ISA, "cp.async.wait_group".
template <int kPending>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Turns 8 bytes of shared memory into a barrier whose phases each end after `arrivals` arrivals. One thread calls
/// this, and the others may use the barrier after a __syncthreads(). PTX ISA, "mbarrier.init".
__device__ inline void mbarrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

/// One arrival. Everything that this thread read and wrote before it precedes everything that a thread does after it
/// has seen the phase end. PTX ISA, "mbarrier.arrive".
__device__ inline void mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(smem_address(barrier)) : "memory");
}

/// One arrival, made when all of this thread's cp_async so far have completed. It counts towards the arrivals that
/// mbarrier_init specified (.noinc). PTX ISA, "cp.async.mbarrier.arrive".
__device__ inline void cp_async_mbarrier_arrive(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_address(barrier)) : "memory");
}

/// Whether the barrier's latest phase of this parity has ended: 0 for its first, third, … and 1 for its second, fourth, …
/// phase. A new barrier behaves as if a phase of parity 1 had just ended. Phases two apart look the same, so a waiting
/// thread must not fall two behind; one that has to arrive in every phase cannot. PTX ISA, "mbarrier.test_wait", .parity.
__device__ inline bool mbarrier_test_wait(std::uint64_t* barrier, int parity) {
  std::uint32_t ended;
  asm volatile("{ .reg .pred ended; mbarrier.test_wait.parity.shared.b64 ended, [%1], %2; selp.u32 %0, 1, 0, ended; }"
               : "=r"(ended)
               : "r"(smem_address(barrier)), "r"(parity)
               : "memory");
  return ended != 0;
}

/// Reads four 8×8 matrices of 16-bit elements. Lanes 8i … 8i+7 supply the addresses of the eight 16-byte rows of matrix
/// i; every lane receives in Ri two elements of matrix i: row lane_id / 4, columns lane_id % 4 * 2 and the next. These
/// are `group` and `pair` of mma_m16n8k16, so the four matrices are parts of its fragments. PTX ISA, "ldmatrix".
__device__ inline void ldmatrix_x4(std::uint32_t& R0, std::uint32_t& R1, std::uint32_t& R2, std::uint32_t& R3,
                                   const void* smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3)
               : "r"(smem_address(smem))
               : "memory");
}

/// The same with each matrix transposed on the way: Ri holds rows lane_id % 4 * 2 and the next of column lane_id / 4.
/// PTX ISA, "ldmatrix", .trans.
__device__ inline void ldmatrix_x4_trans(std::uint32_t& R0, std::uint32_t& R1, std::uint32_t& R2, std::uint32_t& R3,
                                         const void* smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(R0), "=r"(R1), "=r"(R2), "=r"(R3)
               : "r"(smem_address(smem))
               : "memory");
}

}  // namespace flash_ladder
