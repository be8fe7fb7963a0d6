"""17, the causal mask."""

from __future__ import annotations

from .attention import ALL_MMAS, ONE_MMA, STYLES, dead_code, scalar, scores_by_hand, with_extra_barriers
from .edits import Assignment, Write, changed, from_reference, reference, starter

NAME = "17_causal"

LOOP = "for (int kv_row = 0; kv_row < end; kv_row += kBlockKV) {"
END = "const int end = min(args.seq_len_kv, last_key + kBlockQ);"
EVERY_TILE = (END, "const int end = args.seq_len_kv;")
CUT = "if (kv_row + kBlockKV - 1 > last_key) {"
ALWAYS = (CUT, "{")
HIDDEN = "if (key > last_key + row) S_rmem[mma_m][mma_n][i] = -INFINITY;"
ALIGNED = "args.seq_len_kv - args.seq_len + q_tile * kBlockQ + Traits::kAhead"


def scalar_with_the_mask(dummy: str = "", real: str = "float") -> Write:
    """Scalar arithmetic, which skips hidden keys one by one."""
    return lambda assignment: changed(
        scalar(dummy, real=real)(assignment),
        ("if (false) continue;", f"if (key > own + {assignment.values['ahead']}) break;"),
        ("o[d] / l", "(l > 0 ? o[d] / l : 0)"),
    )  # fmt: skip


def with_the_mask_after_the_maximum(assignment: Assignment) -> str:
    """P is set to 0 where it is hidden, but the maximum is one of all scores: if it is too large, all P vanish."""
    text = assignment.reference_answer()
    begin = text.index("\n    // The mask, if")
    end = text.index("\n    // Online softmax. O and")
    mask = text[begin:end].replace("= -INFINITY", "= 0")
    return changed(
        text[:begin] + text[end:],
        ("row_max[mma_m][half]);  // now it is P", "row_max[mma_m][half]);"),
        ("            tile_sum += S_rmem[mma_m][mma_n][i];\n", ""),
        ("    // P to 16 bits.", mask + """
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_sum = 0;
#pragma unroll
        for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
          tile_sum += S_rmem[mma_m][mma_n][2 * half] + S_rmem[mma_m][mma_n][2 * half + 1];
        row_sum[mma_m][half] += group_sum(tile_sum);
      }

    // P to 16 bits."""),
    )  # fmt: skip


def with_a_select(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        (HIDDEN, "S_rmem[mma_m][mma_n][i] = key <= last_key + row ? S_rmem[mma_m][mma_n][i] : -INFINITY;"),
    )


def with_a_decision_for_each_warp(assignment: Assignment) -> str:
    return changed(assignment.reference_answer(), (CUT, "if (kv_row + kBlockKV - 1 > last_key + warp_row) {"))


def with_cut_tiles_first(assignment: Assignment) -> str:
    """From the last tile to the first, as the extension visits them."""
    return changed(
        assignment.reference_answer(),
        (LOOP, "for (int kv_row = (end - 1 + kBlockKV) / kBlockKV * kBlockKV - kBlockKV; kv_row >= 0; "
               "kv_row -= kBlockKV) {"),
    )  # fmt: skip


def with_tiles_counted(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        (LOOP, "const int num_tiles = end > 0 ? (end - 1) / kBlockKV + 1 : 0;\n"
               "  for (int tile = 0; tile < num_tiles; ++tile) {\n    const int kv_row = tile * kBlockKV;"),
    )  # fmt: skip


def with_a_limit_for_each_row(assignment: Assignment) -> str:
    """The number of a row's keys in the tile, compared with a column that is a constant but for the lane."""
    return changed(
        assignment.reference_answer(),
        (HIDDEN, "const int keys = last_key + row - kv_row;\n            if (key - kv_row > keys) "
                 "S_rmem[mma_m][mma_n][i] = -INFINITY;"),
    )  # fmt: skip


def with_zeros_stored_early(assignment: Assignment) -> str:
    """A CTA without keys stores zeros and ends, before it copies anything."""
    text = changed(assignment.reference_answer(), ("  // Copy Q.", """  {
    const int last = args.seq_len_kv - args.seq_len + q_tile * kBlockQ + Traits::kAhead;
    if (last + kBlockQ <= 0) {
      for (int at = threadIdx.x; at < kBlockQ * kHeadDim / 8; at += Traits::kNumWarps * 32) {
        const int row = at / (kHeadDim / 8), col = at % (kHeadDim / 8) * 8;
        *reinterpret_cast<uint4*>(&args.O.row<Element>(batch, head, q_tile * kBlockQ + row)[col]) = uint4{};
      }
      return;
    }
  }
  // Copy Q."""))  # fmt: skip
    begin = text.index("\n  // Without any tile")
    return text[:begin] + text[text.index("\n  // Normalise and store O.") :]


def with_Q_waited_for(assignment: Assignment) -> str:
    """Q has a group of its own, for which every CTA waits before the loop."""
    text = assignment.reference_answer()
    begin = text.index("\n  // Without any tile")
    text = text[:begin] + text[text.index("\n  // Normalise and store O.") :]
    return changed(text, ("  // For each K/V tile:\n",
                          "  cp_async_commit();\n  cp_async_wait<0>();\n  __syncthreads();\n"
                          "  // For each K/V tile:\n"))  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar_with_the_mask(),
    "a scalar kernel with one mma": scalar_with_the_mask(ONE_MMA),
    "a scalar kernel beside all mmas": scalar_with_the_mask(ALL_MMAS),
    "double precision beside all mmas": scalar_with_the_mask(ALL_MMAS, real="double"),
    "scores by hand": scores_by_hand(),
    "the mask after the maximum": with_the_mask_after_the_maximum,
    "every tile": from_reference(EVERY_TILE),
    "every tile, all masked": from_reference(EVERY_TILE, ALWAYS),
    "without a mask": from_reference((HIDDEN, "")),
    "without the lookahead": from_reference((" + Traits::kAhead", "")),
    "aligned at the upper left": from_reference((ALIGNED, "q_tile * kBlockQ + Traits::kAhead")),
    "only the last tile masked": from_reference((CUT, "if (kv_row + kBlockKV >= end) {")),
    "the answer in a branch that is never taken": dead_code,
}
HONEST: dict[str, Write] = {
    name: write for name, write in STYLES.items()
    if name not in ("a while loop", "macros", "the sum at the end", "a rolled product")
} | {
    "the mask by a select": with_a_select,
    "a decision for each warp": with_a_decision_for_each_warp,
    "the cut tiles first": with_cut_tiles_first,
    "the tiles counted": with_tiles_counted,
    "a limit for each row": with_a_limit_for_each_row,
    "zeros stored early": with_zeros_stored_early,
    "Q waited for": with_Q_waited_for,
    "extra barriers": with_extra_barriers,
    "a tile's end as an exit": from_reference((LOOP, "for (int kv_row = 0;; kv_row += kBlockKV) {\n    if (kv_row >= "
                                                     "end) break;")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("NaN in rows that see no key", from_reference(("-1e30f;", "-INFINITY;"), EVERY_TILE, ALWAYS)),
    ("every tile, all masked", from_reference(EVERY_TILE, ALWAYS)),
    ("one hidden tile too many, all masked", from_reference((LOOP, LOOP.replace("< end", "< min(args.seq_len_kv, end + "
                                                                                "kBlockKV)")), ALWAYS)),
    ("all copied tiles masked", from_reference(ALWAYS)),
    ("one hidden tile too many", from_reference((LOOP, LOOP.replace("< end", "< min(args.seq_len_kv, end + "
                                                                             "kBlockKV)")))),
    ("all", reference),
]  # fmt: skip
