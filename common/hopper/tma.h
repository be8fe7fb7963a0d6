// TMA, the unit that copies a box of a tensor between global and shared memory by itself: one thread issues the copy,
// and no thread computes an address. The tensor map (hopper/tensor_map.h) says where the tensor is and how large the
// box is. PTX ISA, "Data Movement and Conversion Instructions: Bulk tensor copy".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ptx.h"

namespace flash_ladder {

/// Starts copying the box [2][rows][64] that begins at (row, 0) of one head of one batch entry to smem, a multiple of
/// 1,024. Rows beyond the last arrive as zeros. When the box has arrived, the barrier counts its bytes, zeros included.
/// One thread calls this. PTX ISA, "cp.async.bulk.tensor", .shared::cluster.global .mbarrier::complete_tx::bytes.
__device__ inline void tma_load(void* smem, const CUtensorMap& map, int row, int head, int batch,
                                std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::
          "r"(smem_address(smem)),
      "l"(&map), "r"(smem_address(barrier)), "r"(0), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// Starts copying the box back; rows beyond the last are not written. PTX ISA, "cp.async.bulk.tensor",
/// .global.shared::cta .bulk_group.
__device__ inline void tma_store(const CUtensorMap& map, int row, int head, int batch, const void* smem) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(&map),
               "r"(smem_address(smem)), "r"(0), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

/// Ends a group: all stores of this thread since the previous one. PTX ISA, "cp.async.bulk.commit_group".
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until this thread's stores have read shared memory, which may then be written again; the bytes may reach
/// global memory later. PTX ISA, "cp.async.bulk.wait_group", .read.
__device__ inline void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Tensor cores (wgmma) and TMA access shared memory through the asynchronous proxy. This makes visible to them what
/// this thread has written by other instructions, including cp.async; a barrier for the writing threads must follow,
/// then the wgmma or the store. PTX ISA, "membar", fence.proxy.async.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace flash_ladder
