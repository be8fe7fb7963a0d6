"""06, swizzle."""

from __future__ import annotations

import re

from .attention import (
    ALL_MMAS,
    ONE_LDMATRIX,
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
from .edits import Assignment, Write, changed, from_reference, reference, replaced, starter

NAME = "06_swizzle"

FORMULA = r"  const int chunk = \(col / kChunk\) \^ \(row / (\d+) % (\d+)\);"


def with_padding(assignment: Assignment) -> str:
    """Rows that are 16 bytes longer, in memory that the kernel declares itself."""
    return changed(
        re.sub(FORMULA, "  const int chunk = col / kChunk;", assignment.reference_answer()),
        ("return row * Traits::kHeadDim + chunk", "return row * (Traits::kHeadDim + kChunk) + chunk"),
        ("extern __shared__ __align__(16) unsigned char smem[];",
         "__shared__ __align__(16) unsigned char smem[(kBlockQ + 2 * kBlockKV) * (kHeadDim + Traits::kChunk) * "
         "sizeof(Element)];"),
        ("Q_smem + kBlockQ * kHeadDim", "Q_smem + kBlockQ * (kHeadDim + Traits::kChunk)"),
        ("K_smem + kBlockKV * kHeadDim", "K_smem + kBlockKV * (kHeadDim + Traits::kChunk)"),
    )  # fmt: skip


def without_swizzle(assignment: Assignment) -> str:
    """Instead of the swizzle, the fragments of K and Q are loaded half as often: Q stays in registers."""
    return re.sub(FORMULA, "  const int chunk = col / kChunk;", with_Q_in_registers(assignment))


def ldmatrix_without_swizzle(assignment: Assignment) -> str:
    text = re.sub(FORMULA, "  const int chunk = col / kChunk;", assignment.reference_answer())
    for tensor, body in (
        ("Q", """
  for (int m = 0; m < Traits::kMmaM; ++m)
    ldmatrix_x4(Q_rmem[m][0], Q_rmem[m][1], Q_rmem[m][2], Q_rmem[m][3],
                Q_smem + smem_offset<Traits>(warp_row + m * 16 + lane % 16, mma_k * 16 + lane / 16 * 8));"""),
        ("K", """
  for (int n = 0; n < Traits::kBlockKV / 8; n += 2)
    ldmatrix_x4(K_rmem[n][0], K_rmem[n][1], K_rmem[n + 1][0], K_rmem[n + 1][1],
                K_smem + smem_offset<Traits>(n * 8 + lane / 16 * 8 + lane % 8, mma_k * 16 + lane / 8 % 2 * 8));"""),
        ("V", """
  for (int n = 0; n < Traits::kHeadDim / 8; n += 2)
    ldmatrix_x4_trans(V_rmem[n][0], V_rmem[n][1], V_rmem[n + 1][0], V_rmem[n + 1][1],
                      V_smem + smem_offset<Traits>(mma_k * 16 + lane % 16, n * 8 + lane / 16 * 8));"""),
    ):  # fmt: skip
        begin = text.index("{\n", text.index(f"void load_{tensor}_fragments"))
        text = (
            text[:begin]
            + "{\n  const int lane = threadIdx.x % 32;\n#pragma unroll"
            + body
            + text[text.index("\n}\n", begin) :]
        )
    return text


def with_rows_swapped(assignment: Assignment) -> str:
    """Chunks of alternate rows change places, which separates two rows of each that conflict."""
    return re.sub(r"\^ \(row / (\d+) % \d+\)", r"^ (row / \1 % 2)", assignment.reference_answer())


def with_a_rotation(assignment: Assignment) -> str:
    """Separates the rows of fragments, but not the chunks of adjacent rows."""
    return re.sub(
        FORMULA,
        r"  const int chunk = (col / kChunk + row / \1 % \2) % Traits::kChunksPerRow;",
        assignment.reference_answer(),
    )


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one ldmatrix": scalar(ONE_LDMATRIX),
    "a scalar kernel beside all mmas": scalar(ALL_MMAS),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "a scalar kernel with tiles": scalar(text=SHARED_SCALAR),
    "a scalar kernel with tiles beside all mmas": scalar(ALL_MMAS, SHARED_SCALAR),
    "scores by hand": scores_by_hand(),
    "scores by hand in every other tile": scores_by_hand("kv_row / kBlockKV % 2 == 1"),
    "fragments from global memory": from_global_memory,
    "padding": with_padding,
    "fewer loads instead of a swizzle": without_swizzle,
    "ldmatrix instead of a swizzle": ldmatrix_without_swizzle,
    "the answer in a branch that is never taken": dead_code,
    "right for one length": of_another_size,
}
HONEST: dict[str, Write] = STYLES | {
    "Q in registers": with_Q_in_registers,
    "keys backwards": with_keys_backwards,
    "extra barriers": with_extra_barriers,
    "O stored directly": with_O_stored_directly,
    "in two statements": from_reference(
        ("const int chunk = (col / kChunk) ^ (row", "int chunk = col / kChunk;\n  chunk ^= (row")
    ),
    "in bytes": replaced(
        (
            FORMULA + r"\n  return [^;]*;",
            r"""  const unsigned bytes = (row * Traits::kHeadDim + col) * 2;
  return int(bytes ^ unsigned(row / \1 % \2) << 4) / 2;""",
        )
    ),
    "XOR as a difference": replaced(
        (
            FORMULA,
            r"""  const int a = col / kChunk, b = row / \1 % \2;
  const int chunk = (a | b) - (a & b);""",
        )
    ),
    "a table": replaced(
        (
            FORMULA,
            r"""  constexpr int kShift[8] = {0 / \1 % \2, 1 / \1 % \2, 2 / \1 % \2, 3 / \1 % \2,
                              4 / \1 % \2, 5 / \1 % \2, 6 / \1 % \2, 7 / \1 % \2};
  const int chunk = (col / kChunk) ^ kShift[row % 8];""",
        )
    ),
    "the groups in another order": replaced(
        (FORMULA, r"  const int chunk = (col / kChunk) ^ (\2 - 1 - row / \1 % \2);")
    ),
}
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("half of the conflicts", with_rows_swapped),
    ("all", reference),
]
