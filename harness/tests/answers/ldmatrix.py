"""07, ldmatrix."""

from __future__ import annotations

import re

from .attention import (
    ALL_MMAS,
    ONE_LDMATRIX,
    ONE_MMA,
    SHARED_SCALAR,
    STYLES,
    dead_code,
    of_another_size,
    scalar,
    scores_by_hand,
    with_extra_barriers,
    with_keys_backwards,
    with_O_stored_directly,
    with_Q_in_registers,
    without_ldmatrix,
)  # fmt: skip
from .edits import Assignment, Write, only, reference, replaced, starter

NAME = "07_ldmatrix"


def by_halves(assignment: Assignment) -> str:
    """ldmatrix.x2, one B at a time."""
    text = re.sub(
        r"ldmatrix_x4(_trans)?\(B\[0\], B\[1\], next_B\[0\], next_B\[1\],",
        lambda m: f"two_of_two{m[1] or ''}(B[0], B[1], next_B[0], next_B[1],",
        assignment.reference_answer(),
    )
    both = "".join(
        f"""
__device__ inline void two_of_two{trans}(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* row) {{
  const unsigned address = flash_ladder::smem_address(row), lane = threadIdx.x % 32;
  const unsigned next = __shfl_sync(0xffffffff, address, lane % 16 + 16);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2{dot}.shared.b16 {{%0, %1}}, [%2];"
               : "=r"(a), "=r"(b) : "r"(address) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2{dot}.shared.b16 {{%0, %1}}, [%2];"
               : "=r"(c), "=r"(d) : "r"(next) : "memory");
}}
"""
        for trans, dot in (("", ""), ("_trans", ".trans"))
    )
    return text.replace('#include "attention.h"\n', '#include "attention.h"\n' + both)


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one mma": scalar(ONE_MMA),
    "a scalar kernel with one ldmatrix": scalar(ONE_LDMATRIX),
    "a scalar kernel beside all mmas": scalar(ALL_MMAS),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "a scalar kernel with tiles beside all mmas": scalar(ALL_MMAS, SHARED_SCALAR),
    "scores by hand": scores_by_hand(),
    "scores by hand in every other tile": scores_by_hand("kv_row / kBlockKV % 2 == 1"),
    "plain loads": without_ldmatrix(),
    "plain loads beside ldmatrix": without_ldmatrix(also=True),
    "plain loads of K": without_ldmatrix(only_in="K"),
    "plain loads of K beside ldmatrix": without_ldmatrix(also=True, only_in="K"),
    "plain loads of V": without_ldmatrix(only_in="V"),
    "the answer in a branch that is never taken": dead_code,
    "right for one length": of_another_size,
}
HONEST: dict[str, Write] = STYLES | {
    "Q in registers": with_Q_in_registers,
    "keys backwards": with_keys_backwards,
    "extra barriers": with_extra_barriers,
    "O stored directly": with_O_stored_directly,
    "two matrices at a time": by_halves,
    "B by B": replaced(
        (r"std::uint32_t\(&B\)\[2\] = (\w)_rmem\[mma_n\], \(&next_B\)\[2\] = \w_rmem\[mma_n \+ 1\];\n", ""),
        (
            r"ldmatrix_x4(_trans)?\(B\[0\], B\[1\], next_B\[0\], next_B\[1\],\n( *)&(\w)_smem",
            r"ldmatrix_x4\1(\3_rmem[mma_n][0], \3_rmem[mma_n][1], \3_rmem[mma_n + 1][0], \3_rmem[mma_n + "
            r"1][1],\n\2&\3_smem",
        ),
    ),
}
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("Q alone", only("load_Q_fragments()")),
    ("Q and K", only("load_Q_fragments()", "load_K_fragments()")),
    ("all", reference),
]
