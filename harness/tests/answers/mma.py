"""04, fragments for mma."""

from __future__ import annotations

import re

from .attention import (
    ALL_MMAS,
    ONE_LDMATRIX,
    ONE_MMA,
    SHARED_SCALAR,
    STYLES,
    dead_code,
    from_global_memory,
    of_another_size,
    scalar,
    scores_by_hand,
    with_extra_barriers,
    with_keys_backwards,
    with_O_stored_directly,
    with_Q_in_registers,
)  # fmt: skip
from .edits import Assignment, Write, from_reference, only, reference, replaced, starter

NAME = "04_mma"


def with_ldmatrix(assignment: Assignment) -> str:
    """A step ahead of the course."""
    text = assignment.reference_answer()
    begin = text.index("{\n", text.index("void load_Q_fragments"))
    end = text.index("\n}\n", begin)
    return (
        text[:begin]
        + """{
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < Traits::kMmaM; ++m)
    ldmatrix_x4(Q_rmem[m][0], Q_rmem[m][1], Q_rmem[m][2], Q_rmem[m][3],
                Q_smem + smem_offset<Traits::kHeadDim>(warp_row + m * 16 + lane % 16, mma_k * 16 + lane / 16 * 8));"""
        + text[end:]
    )


def with_pointers(assignment: Assignment) -> str:
    """One pointer to the lane's first element of Q, from which the others are at constant distances."""
    text = assignment.reference_answer()
    begin = text.index("{\n", text.index("void load_Q_fragments"))
    end = text.index("\n}\n", begin)
    return (
        text[:begin]
        + """{
  const int lane = threadIdx.x % 32;
  const Element* first = Q_smem + (warp_row + lane / 4) * Traits::kHeadDim + mma_k * 16 + 2 * (lane % 4);
  for (int m = 0; m < Traits::kMmaM; ++m, first += 16 * Traits::kHeadDim) {
    const auto* upper = reinterpret_cast<const std::uint32_t*>(first);
    const auto* lower = reinterpret_cast<const std::uint32_t*>(first + 8 * Traits::kHeadDim);
    Q_rmem[m][0] = upper[0], Q_rmem[m][1] = lower[0], Q_rmem[m][2] = upper[4], Q_rmem[m][3] = lower[4];
  }"""
        + text[end:]
    )


def in_single_elements(assignment: Assignment) -> str:
    """Each register from two loads of 16 bits."""
    return re.sub(
        r"\*reinterpret_cast<const std::uint32_t\*>\(&(\w+)\[smem_offset<([\w:]+)>\((.*?), (.*?)\)\]\)",
        r"two_loads(&\1[smem_offset<\2>(\3, \4)])", assignment.reference_answer(),
    ).replace('#include "attention.h"\n', """#include "attention.h"

template <typename T>
__device__ unsigned two_loads(const T* x) {
  const auto* bits = reinterpret_cast<const volatile unsigned short*>(x);
  const unsigned low = bits[0], high = bits[1];
  return high << 16 | low;
}
""")  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one mma": scalar(ONE_MMA),
    "a scalar kernel with one ldmatrix": scalar(ONE_LDMATRIX),
    "a scalar kernel beside all mmas": scalar(ALL_MMAS),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "a scalar kernel with tiles": scalar(text=SHARED_SCALAR),
    "a scalar kernel with tiles beside all mmas": scalar(ALL_MMAS, SHARED_SCALAR),
    "double precision with tiles beside all mmas": scalar(ALL_MMAS, SHARED_SCALAR, "double"),
    "scores by hand": scores_by_hand(),
    "scores by hand after the first tile": scores_by_hand("kv_row > 0"),
    "scores by hand in every other tile": scores_by_hand("kv_row / kBlockKV % 2 == 1"),
    "fragments from global memory": from_global_memory,
    "the answer in a branch that is never taken": dead_code,
    "right for one length": of_another_size,
}
HONEST: dict[str, Write] = STYLES | {
    "Q in registers": with_Q_in_registers,
    "keys backwards": with_keys_backwards,
    "extra barriers": with_extra_barriers,
    "O stored directly": with_O_stored_directly,
    "ldmatrix for Q": with_ldmatrix,
    "pointers instead of indices": with_pointers,
    "halves by prmt": replaced(
        (
            r"high << 16 \| low|pair_bits;",
            lambda m: "__byte_perm(low, high, 0x5410)" if "high" in m[0] else "pair_bits + 0u;",
        )
    ),
}
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("Q alone", only("load_Q_fragments()")),
    ("Q and K", only("load_Q_fragments()", "load_K_fragments()")),
    ("one index of P wrong", from_reference(("2 * mma_k + i / 2]", "2 * mma_k + i % 2]"))),
    ("loads of 16 bits", in_single_elements),
    ("all", reference),
]
