"""16, the open assignment."""

from __future__ import annotations

import re

from .attention import (
    ALL_MMAS,
    ONE_MMA,
    dead_code,
    scalar,
    with_macros,
    with_shifts,
)  # fmt: skip
from .edits import Assignment, Write, changed, from_reference, reference, renamed, replaced, starter

NAME = "16_overlapped_softmax"

LOOP = "for (int kv_row = begin; kv_row < end; kv_row += kBlockKV) {"


def only_the_loop_bounds(assignment: Assignment) -> str:
    """tiles that no query of the CTA sees are skipped, and nothing else is better than in the starter."""
    return re.sub(
        r"  // For each K/V tile:\n.*?\{\n",
        """  // For each K/V tile:
  const int begin = max(0, q_key - Traits::kWindow) / kBlockKV * kBlockKV, end = min(args.seq_len_kv, q_key + kBlockQ);
  for (int kv_row = begin; kv_row < end; kv_row += kBlockKV) {
""",
        assignment.starter(), count=1, flags=re.DOTALL,
    )  # fmt: skip


def with_ladders_softmax(assignment: Assignment) -> str:
    """the reference answer without skipping what a single warp does not see."""
    return re.sub(r"const bool is_seen = .*;", "const bool is_seen = true;", assignment.reference_answer())


def every_tile(assignment: Assignment) -> str:
    """the softmax of 12 and the registers of 14 without regard to the mask."""
    text = re.sub(
        r"const int begin = .*;", "const int begin = 0, end = args.seq_len_kv;", assignment.reference_answer()
    )
    return re.sub(r"const bool is_seen = .*;", "const bool is_seen = true;", text)


def scores_by_hand(assignment: Assignment) -> str:
    """S in scalar arithmetic from shared memory, in the tiles that are seen."""
    text = assignment.reference_answer()
    begin = text.index("#pragma unroll\n", text.index("std::uint32_t K_rmem["))
    end = text.index("\n\n      // The mask, in the tiles")
    k = (
        "K_smem[smem_offset<Traits::kBlockKV>(d, key)]"
        if assignment.values["K_columns"]
        else "K_smem[smem_offset<Traits::kHeadDim>(key, d)]"
    )
    return text[:begin] + f"""
      for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
        for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
          for (int i = 0; i < 4; ++i) {{
            const int row = warp_row + mma_m * 16 + i / 2 * 8 + lane_id / 4, key = mma_n * 8 + lane_id % 4 * 2 + i % 2;
            float sum = 0;
            for (int d = 0; d < kHeadDim; ++d) sum += to_float(Q_smem[smem_offset<Traits::kHeadDim>(row, d)]) *
                to_float({k});
            S_rmem[mma_m][mma_n][i] = sum;
          }}""" + text[end:]  # fmt: skip


def without_the_far_keys(assignment: Assignment) -> str:
    """Half of the window, as if the rest did not matter."""
    return assignment.reference_answer().replace("Traits::kWindow", "(Traits::kWindow / 2)")


def without_a_mask(assignment: Assignment) -> str:
    """Whole tiles are skipped, and inside the others every key is seen."""
    return assignment.reference_answer().replace(
        "if (key > own_key || key < own_key - Traits::kWindow) ", "if (false) "
    )


def only_the_last_tile_masked(assignment: Assignment) -> str:
    return assignment.reference_answer().replace("|| kv_row < warp_key + kMmaM * 16 - 1 - Traits::kWindow) {", ") {")


def with_a_while_loop(assignment: Assignment) -> str:
    return changed(assignment.reference_answer(), (LOOP, "int kv_row = begin - kBlockKV;\n#pragma unroll 1\n  "
                                                         "while ((kv_row += kBlockKV) < end) {"),
                   ("#pragma unroll 1\n  int kv_row", "  int kv_row"))  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one mma": scalar(ONE_MMA),
    "a scalar kernel beside all mmas": scalar(ALL_MMAS),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "scores by hand": scores_by_hand,
    "half of the window": without_the_far_keys,
    "no mask inside a tile": without_a_mask,
    "a mask at one edge": only_the_last_tile_masked,
    "every tile": every_tile,
    "the answer in a branch that is never taken": dead_code,
    "right for one length": from_reference(
        ("end = min(args.seq_len_kv, q_key + kBlockQ)", "end = min(256, q_key + kBlockQ)")
    ),
}
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "a while loop": with_a_while_loop,
    "macros": with_macros,
    "keys backwards": from_reference((LOOP, "for (int kv_row = (end - 1) / kBlockKV * kBlockKV; kv_row >= begin; "
                                            "kv_row -= kBlockKV) {")),
    "shifts and masks": with_shifts,
    "barriers of warps": from_reference(("      // Online softmax, in",
        "      __syncwarp();\n      // Online softmax, in")),
    "mmas in another order": replaced(
        (r"for \(int mma_n = 0; mma_n < kHeadDim / 8; \+\+mma_n\)(\n#pragma unroll\n *for \(int mma_m[^\n]*\n "
         r"*mma_m16)",
         r"for (int mma_n = kHeadDim / 8 - 1; mma_n >= 0; --mma_n)\1")),
    "the mask by a select": from_reference(
        ("if (key > own_key || key < own_key - Traits::kWindow) S_rmem[mma_m][mma_n][i] = -INFINITY;",
         "S_rmem[mma_m][mma_n][i] = unsigned(own_key - key) <= unsigned(Traits::kWindow) ? "
         "S_rmem[mma_m][mma_n][i] : -INFINITY;")),
    "the tiles counted": from_reference(
        (LOOP, "for (int tile = begin / kBlockKV; tile < (end + kBlockKV - 1) / kBlockKV; ++tile) {\n    const "
               "int kv_row = tile * kBlockKV;")),
    "a tile's end as an exit": from_reference((LOOP, "for (int kv_row = begin;; kv_row += kBlockKV) {\n    if "
                                                     "(kv_row >= end) break;")),
    "one wait for K and V": from_reference(("cp_async_wait<1>();", "cp_async_wait<0>();")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("every tile", every_tile),
    ("only the loop's bounds", only_the_loop_bounds),
    ("without what a warp can skip", with_ladders_softmax),
    ("all", reference),
]
