"""Faults and probes planted in the kernels of the ladder, each as a small edit to a copy of the kernel's text.

When the build runs it, it writes the broken versions of a few kernels into one file, which registers each under its own
name:

    planted_faults.py --kernels            prints the kernels in which faults are planted
    planted_faults.py OUTPUT KERNEL…       writes the broken versions of kernels/KERNEL.cu, …

An edit adds no lines, so that the virtual GPU's finding has the same line number as in the kernel's own file.
"""

import dataclasses
import re
import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is broken, and how it must be caught."""

    name: str
    kernel: str
    old: str  # text of the kernel
    new: str  # replacement with the same number of lines
    finding: str | None = None  # its kind; None: a wrong result is enough
    at: str = ""  # text of a line that the finding must name
    suggests: str | None = None  # what the diagnosis of a wrong result must suggest
    says: tuple[str, ...] = ()  # and what it must say
    first: bool = False  # the finding must come before all others
    waits_at: str = ""  # text of the line of the last wait of the first finding's thread

    @property
    def file(self) -> str:
        """The kernel's file, relative to kernels/ and without its suffix."""
        return f"hopper/{self.kernel}" if self.kernel >= "17" else self.kernel

    @property
    def version(self) -> str:
        """Its name in the worker."""
        return f"fault_{[*FAULTS, *PROBES].index(self)}"


def in_each(kernels: tuple[str, ...], name: str, old: str, new: str, *finding_and_at: str) -> list[Fault]:
    """The same edit in several kernels."""
    return [Fault(name, kernel, old, new, *finding_and_at) for kernel in kernels]


# These rescale O only occasionally.
LAZY = (
    "12_optimized_softmax",
    "13_decoupled_warps",
    "14_q_in_registers",
    "15_persistent_ctas",
    "16_overlapped_softmax",
)
RINGS = LAZY[1:]  # these have a ring of K/V tiles
PERSISTENT = LAZY[3:]  # these have persistent CTAs

FAULTS = [
    Fault(
        "scores are never computed",
        "01_naive",
        "  scores<Traits><<<",
        "  if (false) scores<Traits><<<",
        "uninitialised_read",
        "row_max = fmaxf(row_max, S_gmem[key])",
    ),
    Fault(
        "one row too many",
        "01_naive",
        "if (query >= args.seq_len) return;",
        "if (query > args.seq_len) return;",
        "out_of_bounds",
        "P_gmem[key] = ",
    ),
    Fault(
        "a lane is missing in a shuffle",
        "02_online_softmax",
        "score = warp_sum(score)",
        "score = (lane_id == 31 ? score : warp_sum(score))",
        "missing_lanes",
        "__shfl_xor_sync(0xffffffff, x, mask)",
    ),
    Fault(
        "the maximum starts as what happens to be in its register",
        "02_online_softmax",
        "float row_max = -INFINITY; ",
        "float row_max;             ",
        "uninitialised_read",
        "const float new_max = fmaxf(row_max, score);",
    ),
    Fault(
        "the product is added to what happens to be in the accumulators",
        "04_mma",
        "float S_rmem[kMmaM][kBlockKV / 8][4] = {};",
        "float S_rmem[kMmaM][kBlockKV / 8][4];",
        "uninitialised_read",
        "mma_m16n8k16<Element>(S_rmem[mma_m][mma_n]",
    ),
    Fault(
        "tiles are overwritten while others read them",
        "03_tiled",
        "__syncthreads();  // all warps are done",
        "                  // all warps are done",
        "race",
        "copy_tile_transposed<Traits, kBlockKV>(K_smem",
    ),
    Fault(
        "tiles are read before they are complete",
        "03_tiled",
        "__syncthreads();  // K, V and",
        "                  // K, V and",
        "race",
        "load_smem(k, &K_smem",
    ),
    Fault(
        "P is read before its warp has written it",
        "03_tiled",
        "__syncwarp();  // P of this warp's queries is complete",
        "               // P of this warp's queries is complete",
        "race",
        "load_smem(p, &P_smem",
    ),
    Fault(
        "the accumulator is not rescaled",
        "04_mma",
        "*= rescale[mma_m][i / 2];",
        "*= 1 + 0 * rescale[mma_m][i / 2];",
        suggests="O_not_rescaled",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "the last tile is left out",
        "04_mma",
        "kv_row < args.seq_len_kv; kv_row += kBlockKV",
        "kv_row + kBlockKV < args.seq_len_kv; kv_row += kBlockKV",
        suggests="last_tile_left_out",
        says=("the first K/V tile alone is wrong already",),
    ),
    Fault(
        "no wait for the copies of K",
        "05_cp_async",
        "cp_async_wait<1>();",
        "",
        "race",
        "load_K_fragments<Traits>(K_rmem",
    ),
    Fault(
        "the wait for V leaves a group pending",
        "05_cp_async",
        "cp_async_wait<0>();",
        "cp_async_wait<1>();",
        "race",
        "load_V_fragments<Traits>(V_rmem",
    ),
    Fault(
        "the copies of V are never committed",
        "05_cp_async",
        "copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride);",
        "copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride); if (false)",
        "race",
        "load_K_fragments<Traits>(K_rmem",
    ),
    Fault(
        "copies from addresses that are not multiples of 16",
        "05_cp_async",
        "&tile_gmem[row * row_stride + col]);",
        "&tile_gmem[row * row_stride + col + 1]);",
        "misaligned",
        "cp_async_16(&tile_smem",
    ),
    Fault(
        "swizzled by the store, not by the load",
        "06_swizzle",
        "&K_smem[smem_offset<Traits>(key, col)]",
        "&K_smem[key * Traits::kHeadDim + col]",
        suggests="K_swizzle_on_one_side",
        says=("the first K/V tile alone is wrong already", "All input sets are wrong."),
    ),
    Fault(
        "V is read before all threads have waited",
        "06_swizzle",
        "__syncthreads();                        // and so have the copies",
        "                                        // and so have the copies",
        "race",
        "load_V_fragments<Traits>(V_rmem",
    ),
    Fault(
        "one warp passes a barrier by",
        "06_swizzle",
        "__syncthreads();  // all warps are done",
        "if (warp_id != 3) __syncthreads();  // all warps are done",
        "divergent_barrier",
        "__syncthreads();  // all warps are done",
    ),
    Fault(
        "V is not transposed",
        "07_ldmatrix",
        "ldmatrix_x4_trans(B[0]",
        "ldmatrix_x4(B[0]",
        suggests="V_not_transposed",
    ),
    Fault(
        "K is read from the next row on",
        "07_ldmatrix",
        "K_gmem + kv_row * args.K.row_stride",
        "K_gmem + (kv_row + 1) * args.K.row_stride",
        "out_of_bounds",
        "copy_tile<Traits, kBlockKV>(K_smem",
    ),
    Fault(
        "O is read before its warp has written it",
        "07_ldmatrix",
        "__syncwarp();  // the warp's rows of O are complete",
        "               // the warp's rows of O are complete",
        "race",
        "*reinterpret_cast<uint4*>(&O_gmem",
    ),
    Fault(
        "the K after the last is copied",
        "08_pipelined_kv",
        "if (next_kv_row < args.seq_len_kv) {",
        "if (true) {",
        "out_of_bounds",
        "copy_tile<Traits, kBlockKV>(K_smem, K_gmem + next_kv_row",
    ),
    Fault(
        "the next K overwrites one that is still read",
        "08_pipelined_kv",
        "__syncthreads();     // and so have the copies of all other threads; all warps are done with this K",
        "                     // and so have the copies of all other threads; all warps are done with this K",
        "race",
        "copy_tile<Traits, kBlockKV>(K_smem, K_gmem + next_kv_row",
    ),
    Fault(
        "the last K is stale when the number of tiles is odd",
        "08_pipelined_kv",
        "if (next_kv_row < args.seq_len_kv) {",
        "if (next_kv_row + (next_kv_row / kBlockKV % 2 == 0 ? kBlockKV : 0) < args.seq_len_kv) {",
        suggests="K_last_tile_stale",
        says=("right with 1 and 2 K/V tiles, wrong with 3",),
    ),
    Fault(
        "a piece of K lands in the registers in use",
        "09_double_buffered_mma",
        "load_K_fragments<Traits>(K_rmem[next % 2], K_smem, next_mma_k",
        "load_K_fragments<Traits>(K_rmem[piece % 2], K_smem, next_mma_k",
        says=("where K[0][0] (key, column) belongs, there is K[16][0]",),
    ),
    Fault(
        "columns are added where they have to be XORed",
        "10_lean_addressing",
        "return (lane_offset ^ col % kSwizzled) +",
        "return (lane_offset + col % kSwizzled) +",
        "out_of_bounds",
        "ldmatrix_x4_trans(V_rmem[0][0]",
    ),
    Fault(
        "a row's sum is that of one lane",
        "12_optimized_softmax",
        "1 / group_sum(row_sum[mma_m][half])",
        "1 / (row_sum[mma_m][half])",
        suggests="sum_of_one_lane",
    ),
    # The first rescaling finds O empty, so this one is wrong only if another follows: it proves that the inputs of the
    # check reach the rare path.
    *in_each(
        LAZY,
        "O stays behind when a maximum moves",
        "O_rmem[mma_m][mma_n][i] *= rescale;",
        "O_rmem[mma_m][mma_n][i] *= 1;",
    ),
    Fault(
        "row sums stay behind when a maximum moves",
        "12_optimized_softmax",
        "row_sum[mma_m][half] *= rescale;",
        "row_sum[mma_m][half] *= 1;",
    ),
    Fault(
        "no exponential is ever out of range",
        "12_optimized_softmax",
        "if (!__all_sync(0xffffffff, in_range)) {",
        "if (!__all_sync(0xffffffff, in_range) && kv_row == 0) {",
    ),
    Fault(
        "a tile is not waited for",
        "13_decoupled_warps",
        "wait(&full[stage], tile / kStages % 2);",
        "",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    Fault(
        "a tile is waited for with the wrong parity",
        "13_decoupled_warps",
        "wait(&full[stage], tile / kStages % 2);",
        "wait(&full[stage], (tile / kStages + 1) % 2);",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    *in_each(
        RINGS,
        "a buffer is filled before all warps are done with it",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
        "",
        "race",
        "copy_KV_tile(next_stage);",
    ),
    Fault(
        "a buffer is waited for with the wrong parity",
        "13_decoupled_warps",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2);",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "a thread arrives before its copies do",
        "13_decoupled_warps",
        "cp_async_mbarrier_arrive(&full[stage]);",
        "mbarrier_arrive(&full[stage]);",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    Fault(
        "no warp says that it is done with a buffer",
        "13_decoupled_warps",
        "mbarrier_arrive(&empty[stage]);",
        "",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "an mbarrier counts warps, and all threads arrive",
        "13_decoupled_warps",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps);",
        "deadlock",
        "wait(&full[stage], tile / kStages % 2);",
    ),
    Fault(
        "an mbarrier counts one thread more than there are",
        "13_decoupled_warps",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32 + 1);",
        "deadlock",
        "wait(&full[stage], tile / kStages % 2);",
    ),
    Fault(
        "warps arrive at mbarriers that another has yet to make",
        "13_decoupled_warps",
        "__syncthreads();  // the barriers are initialised",
        "                  // the barriers are initialised",
        "race",
        "cp_async_mbarrier_arrive(&full[stage]);",
    ),
    Fault(
        "a fragment of Q takes the columns of the next",
        "14_q_in_registers",
        "Q_rmem[2 * i][mma_m][half + 2] = chunk.y;",
        "Q_rmem[2 * i][mma_m][half + 2] = chunk.z;",
    ),
    Fault(
        "an exchange of the transpose is missing",
        "14_q_in_registers",
        "  exchange(v.x, v.z, lane_id, 2);",
        "",
    ),
    Fault(
        "the last query tile is thought to have a successor",
        "15_persistent_ctas",
        "const bool is_last = next_q_tile >= num_q_tiles;",
        "const bool is_last = next_q_tile > num_q_tiles;",
        "out_of_bounds",
        "copy_KV_tile(next_stage);",
    ),
    *in_each(
        PERSISTENT,
        "K and V run on when the query tile changes",
        "if (is_last_tile && !is_last) turn_to(next_q_tile);",
        "",
        "out_of_bounds",
        "copy_KV_tile(next_stage);",
    ),
    Fault(
        "K and V are those of the query tile before",
        "15_persistent_ctas",
        "if (is_last_tile && !is_last) turn_to(next_q_tile);",
        "if (is_last_tile && !is_last) turn_to(q_tile);",
    ),
    Fault(
        "nothing is copied for the next query tile",
        "15_persistent_ctas",
        "if (!is_last_tile || !is_last) {",
        "if (!is_last_tile) {",
        "deadlock",
        "wait(&full[stage], tile / kStages % 2);",
    ),
    Fault(
        "Q is that of the query tile before",
        "15_persistent_ctas",
        "load_Q(is_last ? q_tile : next_q_tile);",
        "load_Q(q_tile);",
    ),
    Fault(
        "the ring starts over with every query tile",
        "15_persistent_ctas",
        "for (int kv_tile = 0; kv_tile < num_tiles; ++kv_tile, ++tile) {",
        "for (int kv_tile = tile = 0; kv_tile < num_tiles; ++kv_tile, ++tile) {",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "the last query tile but one is thought to be the last",
        "16_overlapped_softmax",
        "const bool is_last = next_q_tile >= num_q_tiles;",
        "const bool is_last = next_q_tile >= num_q_tiles - 1;",
        "deadlock",
        "wait(&full[first_tile % kStages], first_tile / kStages % 2);",
    ),
    Fault(
        "V is that of the wrong step",
        "16_overlapped_softmax",
        "V_step = V_lane + offset;",
        "V_step = V_lane;",
    ),
    Fault(
        "the first tile is not waited for",
        "16_overlapped_softmax",
        "wait(&full[first_tile % kStages], first_tile / kStages % 2);",
        "",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    Fault(
        "a tile is not waited for",
        "16_overlapped_softmax",
        "if (kv_row % kBlockKV == 0) wait(&full[stage], tile / kStages % 2);",
        "",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    Fault(
        "the wrong buffer is said to be free",
        "16_overlapped_softmax",
        "mbarrier_arrive(&empty[(tile - 1) % kStages]);",
        "mbarrier_arrive(&empty[stage]);",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "no warp says that it is done with a buffer",
        "16_overlapped_softmax",
        "if (kv_row % kBlockKV == 0) mbarrier_arrive(&empty[(tile - 1) % kStages]);",
        "",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "a buffer is free before the last of its V is read",
        "16_overlapped_softmax",
        "if (kv_row % kBlockKV == 0) mbarrier_arrive(&empty[(tile - 1) % kStages]);",
        "if ((kv_row + kStepKV) % kBlockKV == 0 && kv_row + kStepKV < args.seq_len_kv) mbarrier_arrive(&empty[stage]);",
        "race",
        "copy_KV_tile(next_stage);",
    ),
    Fault(
        "a query tile's last buffer is never free",
        "16_overlapped_softmax",
        "mbarrier_arrive(&empty[(first_tile - 1) % kStages]);",
        "",
        "deadlock",
        "wait(&empty[next_stage], (tile + 1) / kStages % 2 ^ 1);",
    ),
    Fault(
        "a query tile's last buffer is free before the last of its V is read",
        "16_overlapped_softmax",
        """finish_step();
    first_tile += num_tiles;
    mbarrier_arrive(&empty[(first_tile - 1) % kStages]);""",
        """first_tile += num_tiles;
    mbarrier_arrive(&empty[(first_tile - 1) % kStages]);
    finish_step();""",
        "race",
        "copy_KV_tile(next_stage);",
    ),
    Fault(
        "the first tile is waited for as if it were the CTA's first",
        "16_overlapped_softmax",
        "wait(&full[first_tile % kStages], first_tile / kStages % 2);",
        "wait(&full[first_tile % kStages], 0);",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
    ),
    Fault(
        "the first K and V are those of the CTA's first tile",
        "16_overlapped_softmax",
        "start_step(first_tile % kStages * kStageSize, 0);",
        "start_step(0, 0);",
    ),
    Fault(
        "Q is that of the query tile after the next",
        "16_overlapped_softmax",
        "load_Q(is_last ? q_tile : next_q_tile);",
        "load_Q(min(next_q_tile + int(gridDim.x), num_q_tiles - 1));",
    ),
    # Wrong results that must be diagnosed.
    Fault(
        "lanes of an ldmatrix are swapped",
        "07_ldmatrix",
        """lane_id / 16 * 8 + lane_id % 8;
    const int col = mma_k * 16 + lane_id / 8 % 2 * 8;""",
        """lane_id / 8 % 2 * 8 + lane_id % 8;
    const int col = mma_k * 16 + lane_id / 16 * 8;""",
        suggests="K_halves_swapped",
        says=("the first K/V tile alone is wrong already", "O_rmem[0][0][0] of lane 0 of warp 0"),
    ),
    Fault(
        "the scale is forgotten",
        "07_ldmatrix",
        "[i] *= args.softmax_scale;",
        "[i] *= 1;",
        suggests="scale_left_out",
        says=("the first K/V tile alone is wrong already", "all rows, all columns"),
    ),
    Fault(
        "the scores are three times too large",
        "06_swizzle",
        "[i] *= args.softmax_scale;",
        "[i] *= 3 * args.softmax_scale;",
        suggests="wrong_score_factor",
        says=("every score is 3 times what it should be",),
    ),
    Fault(
        "the scale is forgotten",
        "03_tiled",
        "*= args.softmax_scale;",
        "*= 1;",
        suggests="scale_left_out",
        says=("all rows, all columns",),
    ),
    Fault(
        "a row sum is not rescaled",
        "07_ldmatrix",
        "= row_sum[mma_m][half] * rescale[mma_m][half] + group_sum",
        "= row_sum[mma_m][half] + group_sum",
        suggests="sum_not_rescaled",
        says=("right with 1 K/V tile, wrong with 2", "Right: one K/V tile, a single tile."),
    ),
    Fault(
        "the maximum is overwritten before the rescaling is computed from it",
        "07_ldmatrix",
        """rescale[mma_m][half] = exp_approx(row_max[mma_m][half] - new_max);  // the first time, exp(-inf) = 0
        row_max[mma_m][half] = new_max;""",
        """row_max[mma_m][half] = new_max;
        rescale[mma_m][half] = exp_approx(row_max[mma_m][half] - new_max);""",
        suggests="nothing_rescaled",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "the maximum stays that of the first tile",
        "07_ldmatrix",
        "row_max[mma_m][half] = new_max;",
        "if (kv_row == 0) row_max[mma_m][half] = new_max;",
        suggests="max_not_kept",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "each lane has a maximum of its own",
        "07_ldmatrix",
        "new_max = group_max(new_max);",
        "",
        suggests="max_of_one_lane",
    ),
    Fault(
        "a swizzle of V is forgotten by its loads",
        "07_ldmatrix",
        "&V_smem[smem_offset<Traits>(key, col)]",
        "&V_smem[key * Traits::kHeadDim + col]",
        suggests="V_swizzle_on_one_side",
    ),
    Fault(
        "a swizzle of Q is forgotten by its loads",
        "07_ldmatrix",
        "&Q_smem[smem_offset<Traits>(row, col)]);\n  }",
        "&Q_smem[row * Traits::kHeadDim + col]);\n  }",
        suggests="Q_swizzle_on_one_side",
        says=("rows 1–7 modulo 8",),
    ),
    Fault(
        "V's columns are permuted",
        "07_ldmatrix",
        "const int col = mma_n * 8 + lane_id / 16 * 8;",
        "const int col = mma_n * 8 + (lane_id / 16 ^ 1) * 8;",
        suggests="V_columns_xor_8",
    ),
    Fault(
        "half of the rows are divided by the sums of others",
        "07_ldmatrix",
        "1 / row_sum[mma_m][half];",
        "1 / row_sum[mma_m][0];",
        says=("rows 8–15 modulo 16 (half 1 of every mma tile", "its own factor", "O_rmem[0][0][2] of lane"),
    ),
    Fault(
        "one warp is wrong",
        "07_ldmatrix",
        "1 / row_sum[mma_m][half];",
        "(warp_id == 2 ? 2 : 1) / row_sum[mma_m][half];",
        says=(
            "rows 32–47 of a query tile of 64 (warp 2 of 4)",
            "times 2, with the same factor for every element",
            "of warp 2",
        ),
    ),
    Fault(
        "K is that of the first head",
        "07_ldmatrix",
        "args.K.row<Element>(batch, head, 0)",
        "args.K.row<Element>(batch, 0, 0)",
        suggests="K_of_other_head",
        says=("K is that of batch entry 0, head 0 at batch entry 0, head 1", "heads 1–2 of every batch entry"),
    ),
    Fault(
        "V is that of the other batch entry",
        "07_ldmatrix",
        "args.V.row<Element>(batch, head, 0)",
        "args.V.row<Element>(args.batch - 1 - batch, head, 0)",
        suggests="V_of_other_head",
        says=("V is that of batch entry 1, head 0 at batch entry 0, head 0",),
    ),
    Fault(
        "the keys end at seq_len",
        "07_ldmatrix",
        "kv_row < args.seq_len_kv; kv_row += kBlockKV",
        "kv_row < min(args.seq_len, args.seq_len_kv); kv_row += kBlockKV",
        suggests="seq_len_for_seq_len_kv",
        says=("packed Q, K, V",),
    ),
    Fault(
        "a fragment buffer is loaded one mma_k ahead",
        "07_ldmatrix",
        "load_K_fragments<Traits>(K_rmem, K_smem, mma_k);",
        "load_K_fragments<Traits>(K_rmem, K_smem, (mma_k + 1) % (kHeadDim / 16));",
        suggests="K_next_chunk",
    ),
    Fault(
        "every second key is left out",
        "07_ldmatrix",
        "tile_sum += S_rmem[mma_m][mma_n][i];",
        "if (i % 2 == 0) tile_sum += S_rmem[mma_m][mma_n][i];",
        says=("With V = 1 every O must be 1", "its own factor"),
    ),
    Fault(
        "the keys of V are in another order than those of P",
        "07_ldmatrix",
        "const int key = mma_k * 16 + lane_id % 16;",
        "const int key = mma_k * 16 + (lane_id % 16 * 5 + 3) % 16;",
        says=("that the P of one key is multiplied by the V of another", "where key 0 belongs, there is key 9"),
    ),
    Fault(
        "one piece of head_dim is read from the wrong place",
        "07_ldmatrix",
        "const int col = mma_k * 16 + lane_id / 8 % 2 * 8;",
        "const int col = (mma_k == 3 ? 5 : mma_k) * 16 + lane_id / 8 % 2 * 8;",
        says=("the fragments of Q or K", "columns 48–63; where K[0][48] (key, column) belongs, there is K[0][80]"),
    ),
    # What a first finding must say so that it does not mislead.
    Fault(
        "V begins in the middle of K",
        "05_cp_async",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim;",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim / 2;",
        "overlapping_copies",
        "copy_tile<Traits, kBlockKV>(V_smem",
        first=True,
    ),
    Fault(
        "K and V are one group",
        "05_cp_async",
        "args.K.row_stride);\n    cp_async_commit();",
        "args.K.row_stride);\n",
        "race",
        "copy_tile<Traits, kBlockQ>(Q_smem",
        first=True,
        waits_at="cp_async_wait<1>();",
    ),
    Fault(
        "a stage too far on is said to be free",
        "13_decoupled_warps",
        "mbarrier_arrive(&empty[stage]);",
        "mbarrier_arrive(&empty[next_stage]);",
        "deadlock",
        "mbarrier_arrive(&empty[stage]);",
        first=True,
    ),
    Fault(
        "the parity changes with each tile",
        "13_decoupled_warps",
        "wait(&full[stage], tile / kStages % 2);",
        "wait(&full[stage], tile % 2);",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
        first=True,
        waits_at="wait(&full[stage], tile / kStages % 2);",
    ),
    Fault(
        "V begins in the middle of K",
        "14_q_in_registers",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim;  ",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim / 2;  ",
        "overlapping_copies",
        "copy_tile<Traits, kBlockKV>(V_smem + stage",
        first=True,
    ),
    Fault(
        "a tile is waited for as if it were of the first round",
        "14_q_in_registers",
        "wait(&full[stage], tile / kStages % 2);",
        "wait(&full[stage], 0);",
        "race",
        "load_K_fragments<Traits>(K_rmem[0], K_smem, K_step, 0, 0);",
        first=True,
        waits_at="wait(&full[stage], tile / kStages % 2);",
    ),
    # Wrong results: interchanged rows, and keys.
    Fault(
        "P is stored in another order of keys",
        "03_tiled",
        "&P_smem[(thread_col * kKeys + key) * kBlockQ",
        "&P_smem[(key * kThreadCols + thread_col) * kBlockQ",
        says=("that the P of one key is multiplied by the V of another",),
    ),
    Fault(
        "two registers of a fragment of P are swapped",
        "06_swizzle",
        """S_rmem[mma_m][2 * mma_k + i / 2];
          P_rmem[mma_m][mma_k][i] = pack<Element>(S[i % 2 * 2], S[i % 2 * 2 + 1]);""",
        """S_rmem[mma_m][2 * mma_k + i % 2];
          P_rmem[mma_m][mma_k][i] = pack<Element>(S[i / 2 * 2], S[i / 2 * 2 + 1]);""",
        says=("Suggests that rows are mixed up: fragments of P hold elements of other rows",),
    ),
    Fault(
        "a row sum is not rescaled",
        "02_online_softmax",
        "row_sum = row_sum * rescale + p;",
        "row_sum = row_sum + p;",
        suggests="sum_not_rescaled",
    ),
    Fault(
        "the next K is copied from where this one was",
        "08_pipelined_kv",
        "K_gmem + next_kv_row * args.K.row_stride",
        "K_gmem + kv_row * args.K.row_stride",
        suggests="K_tile_before",
    ),
    Fault(
        "the new maximum is not kept",
        "07_ldmatrix",
        "        row_max[mma_m][half] = new_max;",
        "",
        says=("With V = 1 every O must be 1, and is NaN or infinite.",),
    ),
    # Typing mistakes, to test that `harness --debug` leads to them.
    Fault(
        "two elements of a register of P are swapped",
        "07_ldmatrix",
        "pack<Element>(S[i % 2 * 2], S[i % 2 * 2 + 1])",
        "pack<Element>(S[i % 2 * 2 + 1], S[i % 2 * 2])",
        suggests="V_rows_xor_1",
    ),
    Fault(
        "a sum is that of two lanes of four",
        "07_ldmatrix",
        "return x + __shfl_xor_sync(0xffffffff, x, 2);",
        "return x;",
        says=("With V = 1 every O must be 1",),
    ),
    Fault(
        "lanes store each other's columns of O",
        "07_ldmatrix",
        "mma_n * 8 + lane_id % 4 * 2)",
        "mma_n * 8 + (lane_id % 4 ^ 1) * 2)",
        suggests="V_columns_xor_2",
    ),
    Fault(
        "O is rescaled by the factor of the other row",
        "07_ldmatrix",
        "*= rescale[mma_m][i / 2];",
        "*= rescale[mma_m][1 - i / 2];",
        says=("Keys truncated: right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "V is a tile behind K",
        "07_ldmatrix",
        "V_gmem + kv_row * args.V.row_stride",
        "V_gmem + max(kv_row - kBlockKV, 0) * args.V.row_stride",
        suggests="V_tile_before",
    ),
    Fault(
        "the base of the exponential is forgotten",
        "12_optimized_softmax",
        "args.softmax_scale * 1.44269504f;",
        "args.softmax_scale;",
        suggests="log2e_left_out",
    ),
    Fault(
        "P is that of the old maximum",
        "12_optimized_softmax",
        "        }\n      exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);",
        "        }\n      ",
    ),
    Fault(
        "a row sum forgets what was there before",
        "12_optimized_softmax",
        "row_sum[mma_m][half] += new_sum[mma_m][half];",
        "row_sum[mma_m][half] = new_sum[mma_m][half];",
        says=("Keys truncated: right with 1 K/V tile, wrong with 2", "With V = 1 every O must be 1"),
    ),
    Fault(
        "V's fragments all go to one buffer",
        "12_optimized_softmax",
        "load_V_fragments<Traits>(V_rmem[next % 2], V_smem",
        "load_V_fragments<Traits>(V_rmem[0], V_smem",
    ),
    Fault(
        "a fragment of Q is one mma_k behind",
        "12_optimized_softmax",
        "load_Q_fragments<Traits>(Q_rmem[next_mma_k % 2], Q_smem, Q_lane, next_mma_k);",
        "load_Q_fragments<Traits>(Q_rmem[next_mma_k % 2], Q_smem, Q_lane, mma_k);",
    ),
    Fault(
        "a fragment of Q is multiplied for both of a warp's halves",
        "11_wide_warps",
        "Q_rmem[mma_k % 2][mma_m],",
        "Q_rmem[mma_k % 2][0],",
        says=("the first K/V tile alone is wrong already", "rows 16–31 modulo 32 (mma_m 1 of every warp)"),
    ),
]

# Features of sm_90a only: asynchronous work with mistakes that a GPU hides, and that no other tool detects.
WGMMA_OF_S = "wgmma<Element>(S_rmem, advance(Q,"
WGMMA_OF_PV = "wgmma<Element>(O_rmem, P_rmem[mma_k]"
FIRST_USE_OF_S = "tile_max[half] = fmaxf(tile_max[half], fmaxf(S[0], S[1]));"
LOAD_OF_KV = "tma_load(ring_smem + stage * kKVSize, map,"
STORE_OF_O = "tma_store(O_map,"
WAIT = "while (!mbarrier_try_wait(barrier, parity)) continue;"

HOPPER_FAULTS = [
    # 17: wgmma, with copies by the threads.
    Fault(
        "the tensor cores do not see what was copied",
        "17_wgmma",
        "fence_proxy_async();  // and is visible to the tensor cores,",
        "// and is visible to the tensor cores,",
        "missing_fence",
        "cp_async_16(&tile_smem",
    ),
    Fault(
        "no fence before S, nor before any other wgmma",
        "17_wgmma",
        "wgmma_fence();  // the softmax has read the previous S",
        "",
        "missing_fence",
        WGMMA_OF_S,
    ),
    Fault(
        "no fence between the packing of P and its wgmma",
        "17_wgmma",
        "wgmma_fence();  // P has been packed, and O rescaled",
        "",
        "missing_fence",
        WGMMA_OF_PV,
    ),
    Fault(
        "the softmax does not wait for S",
        "17_wgmma",
        "wgmma_wait<0>();\n    pin(S_rmem);",
        "\n    pin(S_rmem);",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "O is used before its wgmmas have ended",
        "17_wgmma",
        "wgmma_wait<0>();\n    pin(O_rmem);",
        "\n    pin(O_rmem);",
        "in_flight",
        "O_rmem[mma_n][i] *= factor[i / 2];",
    ),
    Fault(
        "the wgmmas of S are in no group",
        "17_wgmma",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32), mma_k > 0);\n  wgmma_commit();",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32), mma_k > 0);\n",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "the next tile is copied over the one that is read",
        "17_wgmma",
        "const int stage = kv_tile % kStages;\n    copy_tile",
        "const int stage = (kv_tile + 1) % kStages;\n    copy_tile",
        "race",
        WGMMA_OF_S,
    ),
    # 18: TMA.
    Fault(
        "the descriptor of K says another swizzle than its tensor map",
        "18_tma",
        "K = matrix_descriptor(K_smem, 0, 1024);",
        "K = matrix_descriptor(K_smem, 0, 1024) ^ std::uint64_t{3} << 62;",
        "layout_mismatch",
        LOAD_OF_KV,
    ),
    Fault(
        "fewer bytes are expected than come",
        "18_tma",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize);",
        "transaction_count",
        LOAD_OF_KV,
    ),
    Fault(
        "no fence follows the initialisation of the barriers",
        "18_tma",
        "fence_mbarrier_init();",
        "",
        "missing_fence",
        "tma_load(Q_smem, Q_map",
    ),
    Fault(
        "the barriers are used before they are there",
        "18_tma",
        "__syncthreads();  // the barriers are initialised",
        "",
        "race",
        "mbarrier_init(Q_full, 1);",
    ),
    Fault(
        "the wrong parity is waited for",
        "18_tma",
        "parity = kv_tile / kStages % 2;",
        "parity = (kv_tile / kStages + 1) % 2;",
        "race",
        WGMMA_OF_S,
    ),
    Fault(
        "nobody waits for V",
        "18_tma",
        "wait(&V_full[stage], parity);",
        "",
        "race",
        WGMMA_OF_PV,
    ),
    Fault(
        "one warp waits for Q, and the others do not",
        "18_tma",
        "wait(Q_full, 0);",
        "if (warp_id == 0) wait(Q_full, 0);",
        "race",
        "tma_load(Q_smem, Q_map",
    ),
    Fault(
        "the parity changes with each tile",
        "18_tma",
        "parity = kv_tile / kStages % 2;",
        "parity = kv_tile % 2;",
        "race",
        WGMMA_OF_S,
        first=True,
        waits_at="wait(&K_full[stage], parity);",
    ),
    Fault(
        "V is copied to K's ring",
        "18_tma",
        "copy(V_smem, V_full, V_map, kv_tile); };",
        "copy(K_smem, V_full, V_map, kv_tile); };",
        "overlapping_copies",
        LOAD_OF_KV,
        first=True,
    ),
    # 19: rings between a producer and a consumer.
    Fault(
        "K is released before its wgmmas have read it",
        "19_warp_specialized",
        "wgmma_wait<0>();\n    pin(S_rmem);\n    release(&K_empty[K_next.buffer]);",
        "release(&K_empty[K_next.buffer]);\n    wgmma_wait<0>();\n    pin(S_rmem);",
        "race",
        WGMMA_OF_S,
    ),
    Fault(
        "V is never released",
        "19_warp_specialized",
        "release(&V_empty[V_next.buffer]);",
        "",
        "deadlock",
        WAIT,
    ),
    Fault(
        "the producer waits for buffers that nobody has used",
        "19_warp_specialized",
        "Position<kStages> K_next{1}, V_next{1};",
        "Position<kStages> K_next{0}, V_next{1};",
        "deadlock",
        WAIT,
    ),
    Fault(
        "the producer does not wait for empty buffers",
        "19_warp_specialized",
        "wait(&empty[stage], next.parity);",
        "",
        "race",
        LOAD_OF_KV,
    ),
    # 20: two consumers, and the registers for them.
    Fault(
        "more registers than there are",
        "20_two_consumers",
        "kConsumerRegisters = 240;",
        "kConsumerRegisters = 248;",
        "deadlock",
        "take_registers<Traits::kConsumerRegisters>();",
    ),
    Fault(
        "the producer keeps its registers",
        "20_two_consumers",
        "keep_registers<Traits::kProducerRegisters>();",
        "",
        "deadlock",
        "take_registers<Traits::kConsumerRegisters>();",
    ),
    Fault(
        "K's barrier counts the warps of one consumer",
        "20_two_consumers",
        "mbarrier_init(&K_empty[stage], Traits::kConsumers * 4);",
        "mbarrier_init(&K_empty[stage], 4);",
        "deadlock",
        WAIT,
    ),
    # 22: O by TMA.
    Fault(
        "TMA does not see O",
        "22_tma_store",
        "fence_proxy_async();                   // this thread's writes are visible to TMA,",
        "// this thread's writes are visible to TMA,",
        "missing_fence",
        STORE_OF_O,
    ),
    Fault(
        "O is stored before all warps have written it",
        "22_tma_store",
        "named_barrier_sync(warp_id / 4, 128);",
        "",
        "race",
        STORE_OF_O,
    ),
    Fault(
        "the block ends while O is read",
        "22_tma_store",
        "if (is_leader) tma_store_wait_read();  // shared memory exists only as long as the CTA",
        "// shared memory exists only as long as the CTA",
        "in_flight",
        STORE_OF_O,
    ),
    Fault(
        "the store of O is in no group",
        "22_tma_store",
        "tma_store_commit();",
        "",
        "in_flight",
        STORE_OF_O,
    ),
    Fault(
        "the next Q is copied over an O that is still read",
        "22_tma_store",
        "if (!is_leader) return;\n    tma_store_wait_read();",
        "if (!is_leader) return;\n",
        "race",
        STORE_OF_O,
    ),
    # 23: two products in flight at a time.
    Fault(
        "the softmax waits for no product at all",
        "23_overlap",
        "wgmma_wait<1>();",
        "wgmma_wait<2>();",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "P is packed while P V reads it",
        "23_overlap",
        "wgmma_wait<0>();\n    pin(O_rmem);\n    pin(P_rmem);  // P V has read it",
        "wgmma_wait<1>();\n    pin(O_rmem);\n    pin(P_rmem);  // P V has read it",
        "in_flight",
        "P_rmem[mma_k][i] = pack<typename Traits::Element>",
    ),
    # 26: turns.
    Fault(
        "a consumer keeps its turn",
        "26_ping_pong",
        "named_barrier_arrive(next_turn, 256);\n    wgmma_wait<1>();",
        "\n    wgmma_wait<1>();",
        "deadlock",
        "named_barrier_sync(turn, 256);",
    ),
    Fault(
        "a query tile's sums go on from those of the one before",
        "26_ping_pong",
        "row_sum[0] = new_sum[0];",
        "row_sum[0] += new_sum[0];",
        says=("With all SMs, where each CTA has one query tile, it is right",),
    ),
    # The faults in the chapters.
    Fault(
        "K goes on by 64 bytes where Q goes on by 32",
        "17_wgmma",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32)",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 64)",
    ),
    Fault(
        "more bytes are promised than come",
        "18_tma",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element) + 16);",
        "deadlock",
        WAIT,
    ),
    Fault(
        "empty counts threads, and warps arrive",
        "19_warp_specialized",
        "mbarrier_init(&K_empty[stage], 4);",
        "mbarrier_init(&K_empty[stage], 128);",
        "deadlock",
        WAIT,
    ),
    Fault(
        "both consumers read the same queries",
        "20_two_consumers",
        "start_S<Traits>(S_rmem, Q_smem + warpgroup_row * kHeadDim, K_smem + K_next.buffer * kKVSize);",
        "start_S<Traits>(S_rmem, Q_smem, K_smem + K_next.buffer * kKVSize);",
    ),
    Fault(
        "a query tile is taken for that of another head",
        "21_persistent",
        "return q_tile / q_tiles_per_head % args.heads;",
        "return q_tile % args.heads;",
    ),
    Fault(
        "O is not swizzled",
        "22_tma_store",
        "row * 64 + ((col / 8) ^ row) % 8 * 8 + col % 8;",
        "row * 64 + col / 8 % 8 * 8 + col % 8;",
    ),
    Fault(
        "V is a tile ahead of P",
        "23_overlap",
        "copy_V(q_tile, kv_tile - 1);",
        "copy_V(q_tile, kv_tile);",
    ),
    Fault(
        "O is not rescaled when the maximum moves",
        "24_lazy_rescale",
        "        scale_rows<Traits>(O_rmem, rescale);",
        "",
    ),
    Fault(
        "a first sum may be as large as it likes",
        "25_first_guess",
        "(new_sum[0] >= least) & (new_sum[0] < 4096) & (new_sum[1] >= least) & (new_sum[1] < 4096);",
        "(new_sum[0] >= least) & (new_sum[1] >= least);",
    ),
    # The earlier code: fp16 loses keys that the sum keeps. Only the adversarial inputs notice.
    *in_each(
        ("25_first_guess", "26_ping_pong", "27_three_consumers"),
        "a guess may be 2^6 above the maximum",
        "is_first ? Traits::kBlockKV / 4 : 0;",
        "is_first ? 1.0f / 64 : 0;",
    ),
    Fault(
        "nobody has the first turn",
        "26_ping_pong",
        "if (next_turn == 4) named_barrier_arrive(next_turn, 256);",
        "",
        "deadlock",
        "named_barrier_sync(turn, 256);",
    ),
    Fault(
        "one key too many is left unmasked",
        "27_three_consumers",
        ">= args.seq_len_kv % kBlockKV)",
        "> args.seq_len_kv % kBlockKV)",
    ),
    Fault(
        "the tile that comes last is masked",
        "28_key_order",
        "args.seq_len_kv % kBlockKV != 0 ? 0 : -1;",
        "args.seq_len_kv % kBlockKV != 0 ? num_kv_tiles - 1 : -1;",
    ),
    Fault(
        "tiles are visited twice",
        "28_key_order",
        "while (std::gcd(kv_stride, num_kv_tiles) != 1) ++kv_stride;",
        "kv_stride = num_kv_tiles / 2;",
    ),
    Fault(
        "sums keep the old reference",
        "29_power_of_two",
        "        new_sum[half] *= rescale[half];",
        "",
    ),
]
FAULTS += HOPPER_FAULTS

# Probes, not faults: these print a line for each row whose maximum changes when O is already relative to it, which is
# rare from 12 on.
RESCALE = "const float rescale = exp2_approx(row_max[mma_m][half] - new_max);"
MOVED = "O moves to a new maximum"
PROBES = in_each(
    LAZY,
    "how often O moves",
    RESCALE,
    f'{RESCALE} if (lane_id % 4 == 0 && row_max[mma_m][half] > -INFINITY && rescale < 1) printf("{MOVED}\\n");',
)


def planted(fault: Fault, text: str, source: str) -> str:
    """The kernel's text with the fault."""
    if (count := text.count(fault.old)) != 1:
        sys.exit(
            f"planted_faults.py: the fault '{fault.name}' replaces '{fault.old}', which {source} has {count} times; "
            "adapt it to the kernel"
        )
    return text.replace(fault.old, fault.new)


def broken(fault: Fault, source: Path) -> str:
    """The same, in its own namespace and under its own name."""
    text = planted(fault, source.read_text(encoding="utf-8"), str(source))
    version = fault.kernel[:2]
    text = text.replace(f"flash_ladder::v{version}", f"flash_ladder::{fault.version}")
    text = text.replace(".source = __FILE__", f'.source = "kernels/extensions/{fault.version}.cu"')
    # The first configuration is enough, and compiles in a fraction of the time.
    text = re.sub(r"(\.configurations =\s*\{configuration<.*?\)),.*?\},\n\}\);", r"\1},\n});", text, flags=re.DOTALL)
    return f'#include <cstdio>\n#line 1 "{source.as_posix()}"\n{text}'


def line_of(fault: Fault, source: Path) -> int:
    """The number of the line that a finding must name."""
    return number_of_line(source, fault.at)


def number_of_line(source: Path, text: str) -> int:
    """The number of the first line that contains a text."""
    lines = source.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def main() -> None:
    if sys.argv[1:] == ["--kernels"]:
        print(";".join(sorted({fault.file for fault in FAULTS})), end="")
        return
    output, *kernels = sys.argv[1:]
    texts = [broken(fault, KERNELS / f"{fault.file}.cu") for fault in (*FAULTS, *PROBES) if fault.file in kernels]
    Path(output).write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
