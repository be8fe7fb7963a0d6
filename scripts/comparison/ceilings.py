"""Kernels that consist of one kind of instruction, which measure its maximum throughput."""

from __future__ import annotations

from dataclasses import dataclass

# Only one kind of instruction, undisturbed by loads and stores. Eight chains of mma.sync per warp:
MMA_SYNC_SOURCE = r"""
extern "C" __global__ void ceiling(const unsigned* operands, float* out, int rounds) {
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = operands[i * blockDim.x + threadIdx.x];
  for (int i = 0; i < 2; ++i) b[i] = operands[(4 + i) * blockDim.x + threadIdx.x];
  float c[8][4] = {};
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

# Two warpgroups per CTA, each with its own 64 rows of A and both with the same 256 of B, in tiles of 64 columns with
# 128-byte swizzle (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"). The values of the data do not
# matter.
ACCUMULATORS = ", ".join(f"%{i}" for i in range(128))
WGMMA_SOURCE = rf"""
extern "C" __global__ void __launch_bounds__(256) ceiling(const unsigned* operands, float* out, int rounds) {{
  __shared__ __align__(1024) unsigned smem[(2 * 64 + 256) * 32];
  for (int i = threadIdx.x; i < (2 * 64 + 256) * 32; i += 256) smem[i] = operands[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned begin = __cvta_generic_to_shared(smem);
  const unsigned long long layout = 1ull << 62 | 64ull << 32;  // 128-byte swizzle; 1024 bytes from 8 rows to the next
  const unsigned long long A = layout | (begin + threadIdx.x / 128 * 64 * 128) / 16;
  const unsigned long long B = layout | (begin + 2 * 64 * 128) / 16;
  float c[128];
  for (int i = 0; i < 128; ++i) c[i] = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int round = 0; round < rounds; ++round) {{
#pragma unroll
    for (int k = 0; k < 16; ++k)
      asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{ACCUMULATORS}}}, %128, %129, 1, 1, 1, 0, 0;"
                   : {", ".join(f'"+f"(c[{i}])' for i in range(128))}
                   : "l"(A + k % 4 * 2), "l"(B + k % 4 * 2));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }}
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += c[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""


@dataclass(frozen=True)
class Ceiling:
    """The maximum throughput of one kind of instruction."""

    name: str
    note: str
    source: str
    capability: str | None  # the only compute capability that supports it: "90a"; None: all that the ladder runs on
    ctas_per_sm: int
    rounds: int
    operands: int  # 32-bit words, two fp16 numbers each
    operations: float  # of a warp in an iteration


CEILINGS = [
    Ceiling(
        "mma.sync",
        "mma.sync.m16n8k16, fp16 to fp32, from registers, random normal inputs",
        MMA_SYNC_SOURCE,
        None,
        2,
        40000,
        6 * 256,
        8 * 2.0 * 16 * 8 * 16,
    ),
    Ceiling(
        "wgmma",
        "wgmma.m64n256k16, fp16 to fp32, from shared memory, random normal inputs",
        WGMMA_SOURCE,
        "90a",
        1,
        4000,
        (2 * 64 + 256) * 32,
        16 * 2.0 * 64 * 256 * 16 / 4,
    ),
]
