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

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
sys.path.append(str(ROOT / "scripts"))

from kernel_places import PlaceError, Places  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is broken, and how it must be caught."""

    name: str
    kernel: str
    place: str  # scripts/kernel_places.py
    old: str  # text of the kernel in that place
    new: str  # replacement with the same number of lines
    finding: str | None = None  # its kind; None: a wrong result is enough
    at: str = ""  # the place that the finding must name
    reason: str = ""  # of a wrong result whose output is right
    suggests: str | None = None  # what the diagnosis of a wrong result must suggest
    says: tuple[str, ...] = ()  # and what it must say
    first: bool = False  # the finding must come before all others
    waits_at: str = ""  # the place of the last wait of the first finding's thread

    @property
    def file(self) -> str:
        """The kernel's file, relative to kernels/ and without its suffix."""
        if self.is_decoding:
            return f"decoding/{self.kernel}"
        on_hopper = self.kernel.startswith("hopper_") if self.is_extension else self.kernel >= "17"
        return f"{'hopper/' * on_hopper}{'extensions/' * self.is_extension}{self.kernel}"

    @property
    def is_extension(self) -> bool:
        """It is called by a name."""
        return not self.kernel[0].isdigit() and not self.is_decoding

    @property
    def is_decoding(self) -> bool:
        return re.match(r"D\d\d_", self.kernel) is not None

    @property
    def version(self) -> str:
        """Its name in the worker."""
        return f"fault_{[*FAULTS, *PROBES].index(self)}"


def in_each(kernels: tuple[str, ...], name: str, place: str, old: str, new: str, *finding_and_at: str) -> list[Fault]:
    """The same edit in several kernels."""
    return [Fault(name, kernel, place, old, new, *finding_and_at) for kernel in kernels]


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
        "O = P V",
        "  scores<Traits><<<",
        "  if (false) scores<Traits><<<",
        "uninitialised_read",
        "m",
    ),
    Fault(
        "one row too many",
        "01_naive",
        "P = exp",
        "if (query >= args.seq_len) return;",
        "if (query > args.seq_len) return;",
        "out_of_bounds",
        "m + 1",
    ),
    Fault(
        "a lane is missing in a shuffle",
        "02_online_softmax",
        "S = Q Kᵀ",
        "score = warp_sum(score)",
        "score = (lane_id == 31 ? score : warp_sum(score))",
        "missing_lanes",
        "Sums x over the 32 lanes + 2",
    ),
    Fault(
        "the maximum is not initialised",
        "02_online_softmax",
        "maximum m of the scores so far",
        "float row_max = -INFINITY; ",
        "float row_max;             ",
        "uninitialised_read",
        "Online softmax + 1",
    ),
    Fault(
        "the accumulators are not initialised",
        "04_mma",
        "S = Q Kᵀ",
        "float S_rmem[kMmaM][kBlockKV / 8][4] = {};",
        "float S_rmem[kMmaM][kBlockKV / 8][4];",
        "uninitialised_read",
        "S = Q Kᵀ + 9",
    ),
    Fault(
        "tiles are overwritten while other warps read them",
        "03_tiled",
        "all warps are done with the previous iteration's tiles",
        "__syncthreads();  // all warps are done",
        "                  // all warps are done",
        "race",
        "Copy K and V + 2",
    ),
    Fault(
        "tiles are read before they are complete",
        "03_tiled",
        "K, V and, the first time, Q are complete",
        "__syncthreads();  // K, V and",
        "                  // K, V and",
        "race",
        "S = Q Kᵀ + 5",
    ),
    Fault(
        "P is read before its warp has written it",
        "03_tiled",
        "P of this warp's queries is complete",
        "__syncwarp();  // P of this warp's queries is complete",
        "               // P of this warp's queries is complete",
        "race",
        "O += P V + 3",
    ),
    Fault(
        "the accumulator is not rescaled",
        "04_mma",
        "O = O · r",
        "*= rescale[mma_m][i / 2];",
        "*= 1 + 0 * rescale[mma_m][i / 2];",
        suggests="O_not_rescaled",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "the last tile is left out",
        "04_mma",
        "For each K/V tile",
        "kv_row < args.seq_len_kv; kv_row += kBlockKV",
        "kv_row + kBlockKV < args.seq_len_kv; kv_row += kBlockKV",
        suggests="last_tile_left_out",
        says=("the first K/V tile alone is wrong already",),
    ),
    Fault(
        "no wait for the copies of K",
        "05_cp_async",
        "this thread's copies of K",
        "cp_async_wait<1>();",
        "",
        "race",
        "S = Q Kᵀ + 6",
    ),
    Fault(
        "the wait for V leaves a group pending",
        "05_cp_async",
        "this thread's copies of V have arrived",
        "cp_async_wait<0>();",
        "cp_async_wait<1>();",
        "race",
        "O += P V + 5",
    ),
    Fault(
        "the copies of V are never committed",
        "05_cp_async",
        "Copy K and V",
        "copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride);",
        "copy_tile<Traits, kBlockKV>(V_smem, V_gmem + kv_row * args.V.row_stride, args.V.row_stride); if (false)",
        "race",
        "S = Q Kᵀ + 6",
    ),
    Fault(
        "copies from addresses that are not multiples of 16",
        "05_cp_async",
        "Starts copying",
        "&tile_gmem[row * row_stride + col]);",
        "&tile_gmem[row * row_stride + col + 1]);",
        "misaligned",
        "Starts copying + 7",
    ),
    Fault(
        "swizzled by the store, not by the load",
        "06_swizzle",
        "B = Kᵀ",
        "&K_smem[smem_offset<Traits>(key, col)]",
        "&K_smem[key * Traits::kHeadDim + col]",
        suggests="K_swizzle_on_one_side",
        says=("the first K/V tile alone is wrong already", "All input sets are wrong."),
    ),
    Fault(
        "V is read before all threads have waited",
        "06_swizzle",
        "O += P V > and so have the copies of all other threads",
        "__syncthreads();                        // and so have the copies",
        "                                        // and so have the copies",
        "race",
        "O += P V + 5",
    ),
    Fault(
        "one warp skips a barrier",
        "06_swizzle",
        "all warps are done with the previous iteration's tiles",
        "__syncthreads();  // all warps are done",
        "if (warp_id != 3) __syncthreads();  // all warps are done",
        "divergent_barrier",
        "all warps are done with the previous iteration's tiles",
    ),
    Fault(
        "V is not transposed",
        "07_ldmatrix",
        "B = V",
        "ldmatrix_x4_trans(B[0]",
        "ldmatrix_x4(B[0]",
        suggests="V_not_transposed",
    ),
    Fault(
        "K is read one row too late",
        "07_ldmatrix",
        "Copy K and V",
        "K_gmem + kv_row * args.K.row_stride",
        "K_gmem + (kv_row + 1) * args.K.row_stride",
        "out_of_bounds",
        "Copy K and V + 2",
    ),
    Fault(
        "O is read before its warp has written it",
        "07_ldmatrix",
        "the warp's rows of O are complete",
        "__syncwarp();  // the warp's rows of O are complete",
        "               // the warp's rows of O are complete",
        "race",
        "two rows at a time + 3",
    ),
    Fault(
        "a K tile past the end is copied",
        "08_pipelined_kv",
        "Copy the next K",
        "if (next_kv_row < args.seq_len_kv) {",
        "if (true) {",
        "out_of_bounds",
        "Copy the next K + 5",
    ),
    Fault(
        "the next K overwrites one that is still being read",
        "08_pipelined_kv",
        "and so have the copies of all other threads; all warps are done with this",
        "__syncthreads();     // and so have the copies of all other threads; all warps are done with this K",
        "                     // and so have the copies of all other threads; all warps are done with this K",
        "race",
        "Copy the next K + 5",
    ),
    Fault(
        "the last K is stale when the number of tiles is odd",
        "08_pipelined_kv",
        "Copy the next K",
        "if (next_kv_row < args.seq_len_kv) {",
        "if (next_kv_row + (next_kv_row / kBlockKV % 2 == 0 ? kBlockKV : 0) < args.seq_len_kv) {",
        suggests="K_last_tile_stale",
        says=("right with 1 and 2 K/V tiles, wrong with 3",),
    ),
    Fault(
        "a piece of K is loaded into registers that are still in use",
        "09_double_buffered_mma",
        "S = Q Kᵀ",
        "load_K_fragments<Traits>(K_rmem[next % 2], K_smem, next_mma_k",
        "load_K_fragments<Traits>(K_rmem[piece % 2], K_smem, next_mma_k",
        says=("where K[0][0] (key, column) belongs, there is K[16][0]",),
    ),
    Fault(
        "columns are added instead of XORed",
        "10_lean_addressing",
        "The same for a fragment that starts at",
        "return (lane_offset ^ col % kSwizzled) +",
        "return (lane_offset + col % kSwizzled) +",
        "out_of_bounds",
        "B = V + 2",
    ),
    Fault(
        "a row's sum covers only one lane",
        "12_optimized_softmax",
        "1 / l",
        "1 / group_sum(row_sum[mma_m][half])",
        "1 / (row_sum[mma_m][half])",
        suggests="sum_of_one_lane",
    ),
    # The first rescaling finds O empty, so this one is wrong only if another follows: it proves that the inputs of the
    # check reach the rare path.
    *in_each(
        LAZY,
        "O is not rescaled when its maximum changes",
        "O = O · r",
        "O_rmem[mma_m][mma_n][i] *= rescale;",
        "O_rmem[mma_m][mma_n][i] *= 1;",
    ),
    Fault(
        "row sums are not rescaled when a maximum changes",
        "12_optimized_softmax",
        "l = l · r",
        "row_sum[mma_m][half] *= rescale;",
        "row_sum[mma_m][half] *= 1;",
    ),
    Fault(
        "the range check never triggers",
        "12_optimized_softmax",
        "All lanes must decide together",
        "if (!__all_sync(0xffffffff, in_range)) {",
        "if (!__all_sync(0xffffffff, in_range) && kv_row == 0) {",
    ),
    Fault(
        "a tile is not waited for",
        "13_decoupled_warps",
        "For each K/V tile",
        "wait(&full[stage], kv_tile / kStages % 2);",
        "",
        "race",
        "pieces of K + 2",
    ),
    Fault(
        "a tile is waited for with the wrong parity",
        "13_decoupled_warps",
        "For each K/V tile",
        "wait(&full[stage], kv_tile / kStages % 2);",
        "wait(&full[stage], (kv_tile / kStages + 1) % 2);",
        "race",
        "pieces of K + 2",
    ),
    *in_each(
        RINGS[:2],
        "a buffer is filled before all warps are done with it",
        "In the middle of a tile",
        "wait(&empty[next_stage], (kv_tile + 1) / kStages % 2 ^ 1);",
        "",
        "race",
        "In the middle of a tile + 3",
    ),
    *in_each(
        PERSISTENT,
        "a buffer is filled before all warps are done with it",
        "In the middle of a tile",
        "wait(&empty[next_stage], (ring_tile + 1) / kStages % 2 ^ 1);",
        "",
        "race",
        "In the middle of a tile + 7",
    ),
    Fault(
        "a buffer is waited for with the wrong parity",
        "13_decoupled_warps",
        "In the middle of a tile",
        "wait(&empty[next_stage], (kv_tile + 1) / kStages % 2 ^ 1);",
        "wait(&empty[next_stage], (kv_tile + 1) / kStages % 2);",
        "deadlock",
        "In the middle of a tile + 2",
    ),
    Fault(
        "a thread arrives before its copies do",
        "13_decoupled_warps",
        "Copies this thread's share",
        "cp_async_mbarrier_arrive(&full[stage]);",
        "mbarrier_arrive(&full[stage]);",
        "race",
        "pieces of K + 2",
    ),
    Fault(
        "no warp releases a buffer",
        "13_decoupled_warps",
        "For each step of",
        "mbarrier_arrive(&empty[stage]);",
        "",
        "deadlock",
        "In the middle of a tile + 2",
    ),
    Fault(
        "an mbarrier is initialised with the number of warps, but all threads arrive",
        "13_decoupled_warps",
        "Each thread arrives at full",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps);",
        "deadlock",
        "For each K/V tile + 3",
    ),
    Fault(
        "an mbarrier is initialised for one arrival too many",
        "13_decoupled_warps",
        "Each thread arrives at full",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32);",
        "mbarrier_init(&full[threadIdx.x], Traits::kNumWarps * 32 + 1);",
        "deadlock",
        "For each K/V tile + 3",
    ),
    Fault(
        "warps arrive at mbarriers before another warp has initialised them",
        "13_decoupled_warps",
        "the barriers are initialised",
        "__syncthreads();  // the barriers are initialised",
        "                  // the barriers are initialised",
        "race",
        "Copies this thread's share + 4",
    ),
    Fault(
        "a fragment of Q is loaded from the columns of the next one",
        "14_q_in_registers",
        "Chunks of Q to fragments",
        "Q_rmem[2 * i][mma_m][half + 2] = chunk.y;",
        "Q_rmem[2 * i][mma_m][half + 2] = chunk.z;",
    ),
    Fault(
        "an exchange of the transpose is missing",
        "14_q_in_registers",
        "Four lanes share a row",
        "  exchange(v.x, v.z, lane_id, 2);",
        "",
    ),
    Fault(
        "the last query tile is treated as if another followed",
        "15_persistent_ctas",
        "For each of this CTA's query tiles",
        "const bool is_last = next_q_tile >= num_q_tiles;",
        "const bool is_last = next_q_tile > num_q_tiles;",
        "out_of_bounds",
        "In the middle of a tile + 7",
    ),
    *in_each(
        PERSISTENT,
        "the position in K and V is not reset for the next query tile",
        "In the middle of a tile",
        "if (is_last_tile && !is_last) prepare_q_tile(next_q_tile);",
        "",
        "out_of_bounds",
        "In the middle of a tile + 7",
    ),
    Fault(
        "K and V of the previous query tile are used",
        "15_persistent_ctas",
        "In the middle of a tile",
        "if (is_last_tile && !is_last) prepare_q_tile(next_q_tile);",
        "if (is_last_tile && !is_last) prepare_q_tile(q_tile);",
    ),
    Fault(
        "nothing is copied for the next query tile",
        "15_persistent_ctas",
        "In the middle of a tile",
        "if (!is_last_tile || !is_last) {",
        "if (!is_last_tile) {",
        "deadlock",
        "For each K/V tile + 3",
    ),
    Fault(
        "Q of the previous query tile is used",
        "15_persistent_ctas",
        "S no longer needs this Q",
        "load_Q(is_last ? q_tile : next_q_tile);",
        "load_Q(q_tile);",
    ),
    Fault(
        "the ring restarts with every query tile",
        "15_persistent_ctas",
        "For each K/V tile",
        "for (int kv_tile = 0; kv_tile < num_kv_tiles; ++kv_tile, ++ring_tile) {",
        "for (int kv_tile = ring_tile = 0; kv_tile < num_kv_tiles; ++kv_tile, ++ring_tile) {",
        "deadlock",
        "In the middle of a tile + 6",
    ),
    Fault(
        "the last query tile but one is treated as the last",
        "16_overlapped_softmax",
        "For each of this CTA's query tiles",
        "const bool is_last = next_q_tile >= num_q_tiles;",
        "const bool is_last = next_q_tile >= num_q_tiles - 1;",
        "deadlock",
        "The first step + 1",
    ),
    Fault(
        "V of the wrong iteration is used",
        "16_overlapped_softmax",
        "The first half of a step",
        "V_step = V_lane + offset;",
        "V_step = V_lane;",
    ),
    Fault(
        "the first tile is not waited for",
        "16_overlapped_softmax",
        "The first step",
        "wait(&full[first_ring_tile % kStages], first_ring_tile / kStages % 2);",
        "",
        "race",
        "S = Q Kᵀ + 4",
    ),
    Fault(
        "a tile is not waited for",
        "16_overlapped_softmax",
        "For each further step of 16 keys",
        "if (kv_row % kBlockKV == 0) wait(&full[stage], ring_tile / kStages % 2);",
        "",
        "race",
        "S = Q Kᵀ + 4",
    ),
    Fault(
        "the wrong buffer is released",
        "16_overlapped_softmax",
        "previous tile has been read",
        "mbarrier_arrive(&empty[(ring_tile - 1) % kStages]);",
        "mbarrier_arrive(&empty[stage]);",
        "deadlock",
        "In the middle of a tile + 6",
    ),
    Fault(
        "no warp releases a buffer",
        "16_overlapped_softmax",
        "previous tile has been read",
        "if (kv_row % kBlockKV == 0) mbarrier_arrive(&empty[(ring_tile - 1) % kStages]);",
        "",
        "deadlock",
        "In the middle of a tile + 6",
    ),
    Fault(
        "a buffer is released before the last of its V is read",
        "16_overlapped_softmax",
        "previous tile has been read",
        "if (kv_row % kBlockKV == 0) mbarrier_arrive(&empty[(ring_tile - 1) % kStages]);",
        "if ((kv_row + kStepKV) % kBlockKV == 0 && kv_row + kStepKV < args.seq_len_kv) mbarrier_arrive(&empty[stage]);",
        "race",
        "In the middle of a tile + 7",
    ),
    Fault(
        "a query tile's last buffer is never released",
        "16_overlapped_softmax",
        "Load the next Q while O is finished",
        "mbarrier_arrive(&empty[(first_ring_tile - 1) % kStages]);",
        "",
        "deadlock",
        "In the middle of a tile + 6",
    ),
    Fault(
        "a query tile's last buffer is released before the last of its V is read",
        "16_overlapped_softmax",
        "Load the next Q while O is finished",
        """finish_step();
    first_ring_tile += num_kv_tiles;
    mbarrier_arrive(&empty[(first_ring_tile - 1) % kStages]);""",
        """first_ring_tile += num_kv_tiles;
    mbarrier_arrive(&empty[(first_ring_tile - 1) % kStages]);
    finish_step();""",
        "race",
        "In the middle of a tile + 7",
    ),
    Fault(
        "the first tile is waited for as if it were the CTA's first",
        "16_overlapped_softmax",
        "The first step",
        "wait(&full[first_ring_tile % kStages], first_ring_tile / kStages % 2);",
        "wait(&full[first_ring_tile % kStages], 0);",
        "race",
        "S = Q Kᵀ + 4",
    ),
    Fault(
        "the first K and V are those of the CTA's first tile",
        "16_overlapped_softmax",
        "The first step",
        "start_step(first_ring_tile % kStages * kStageSize, 0);",
        "start_step(0, 0);",
    ),
    Fault(
        "Q of the next query tile but one is used",
        "16_overlapped_softmax",
        "Load the next Q while O is finished",
        "load_Q(is_last ? q_tile : next_q_tile);",
        "load_Q(min(next_q_tile + int(gridDim.x), num_q_tiles - 1));",
    ),
    # Wrong results that must be diagnosed.
    Fault(
        "lanes of an ldmatrix are swapped",
        "07_ldmatrix",
        "B = Kᵀ",
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
        "Online softmax",
        "[i] *= args.softmax_scale;",
        "[i] *= 1;",
        suggests="scale_left_out",
        says=("the first K/V tile alone is wrong already", "all rows, all columns"),
    ),
    Fault(
        "the scores are three times too large",
        "06_swizzle",
        "Online softmax",
        "[i] *= args.softmax_scale;",
        "[i] *= 3 * args.softmax_scale;",
        suggests="wrong_score_factor",
        says=("every score is 3 times what it should be",),
    ),
    Fault(
        "the scale is forgotten",
        "03_tiled",
        "Online softmax",
        "*= args.softmax_scale;",
        "*= 1;",
        suggests="scale_left_out",
        says=("all rows, all columns",),
    ),
    Fault(
        "a row sum is not rescaled",
        "07_ldmatrix",
        "l",
        "= row_sum[mma_m][half] * rescale[mma_m][half] + group_sum",
        "= row_sum[mma_m][half] + group_sum",
        suggests="sum_not_rescaled",
        says=("right with 1 K/V tile, wrong with 2", "Right: one K/V tile, a single tile, many query tiles."),
    ),
    Fault(
        "the maximum is overwritten before the rescaling is computed from it",
        "07_ldmatrix",
        "Online softmax",
        """rescale[mma_m][half] = exp_approx(row_max[mma_m][half] - new_max);  // r; the first time, exp(-inf) = 0
        row_max[mma_m][half] = new_max; """,
        """row_max[mma_m][half] = new_max;
        rescale[mma_m][half] = exp_approx(row_max[mma_m][half] - new_max); """,
        suggests="nothing_rescaled",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "the maximum of the first tile is kept",
        "07_ldmatrix",
        "m",
        "row_max[mma_m][half] = new_max;",
        "if (kv_row == 0) row_max[mma_m][half] = new_max;",
        suggests="max_not_kept",
        says=("right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "each lane has a maximum of its own",
        "07_ldmatrix",
        "of the whole row",
        "new_max = group_max(new_max);",
        "",
        suggests="max_of_one_lane",
    ),
    Fault(
        "a swizzle of V is forgotten by its loads",
        "07_ldmatrix",
        "B = V",
        "&V_smem[smem_offset<Traits>(key, col)]",
        "&V_smem[key * Traits::kHeadDim + col]",
        suggests="V_swizzle_on_one_side",
    ),
    Fault(
        "a swizzle of Q is forgotten by its loads",
        "07_ldmatrix",
        "A = Q",
        "&Q_smem[smem_offset<Traits>(row, col)]);",
        "&Q_smem[row * Traits::kHeadDim + col]);",
        suggests="Q_swizzle_on_one_side",
        says=("rows 1–7 modulo 8",),
    ),
    Fault(
        "V's columns are permuted",
        "07_ldmatrix",
        "B = V",
        "const int col = mma_n * 8 + lane_id / 16 * 8;",
        "const int col = mma_n * 8 + (lane_id / 16 ^ 1) * 8;",
        suggests="V_columns_xor_8",
    ),
    Fault(
        "half of the rows are divided by the sums of other rows",
        "07_ldmatrix",
        "1 / l",
        "1 / row_sum[mma_m][half];",
        "1 / row_sum[mma_m][0];",
        says=("rows 8–15 modulo 16 (half 1 of every mma tile", "its own factor", "O_rmem[0][0][2] of lane"),
    ),
    Fault(
        "one warp is wrong",
        "07_ldmatrix",
        "1 / l",
        "1 / row_sum[mma_m][half];",
        "(warp_id == 2 ? 2 : 1) / row_sum[mma_m][half];",
        says=(
            "rows 32–47 of a query tile of 64 (warp 2 of 4)",
            "times 2, with the same factor for every element",
            "of warp 2",
        ),
    ),
    Fault(
        "K always comes from the first head",
        "07_ldmatrix",
        "What this CTA computes",
        "args.K.row<Element>(batch, head, 0)",
        "args.K.row<Element>(batch, 0, 0)",
        suggests="K_of_other_head",
        says=("K is that of batch entry 0, head 0 at batch entry 0, head 1", "heads 1–2 of every batch entry"),
    ),
    Fault(
        "V comes from the other batch entry",
        "07_ldmatrix",
        "What this CTA computes",
        "args.V.row<Element>(batch, head, 0)",
        "args.V.row<Element>(args.batch - 1 - batch, head, 0)",
        suggests="V_of_other_head",
        says=("V is that of batch entry 1, head 0 at batch entry 0, head 0",),
    ),
    Fault(
        "seq_len is used instead of seq_len_kv",
        "07_ldmatrix",
        "For each K/V tile",
        "kv_row < args.seq_len_kv; kv_row += kBlockKV",
        "kv_row < min(args.seq_len, args.seq_len_kv); kv_row += kBlockKV",
        suggests="seq_len_for_seq_len_kv",
        says=("packed Q, K, V",),
    ),
    Fault(
        "a fragment buffer is loaded one mma_k ahead",
        "07_ldmatrix",
        "S = Q Kᵀ",
        "load_K_fragments<Traits>(K_rmem, K_smem, mma_k);",
        "load_K_fragments<Traits>(K_rmem, K_smem, (mma_k + 1) % (kHeadDim / 16));",
        suggests="K_next_chunk",
    ),
    Fault(
        "every second key is left out",
        "07_ldmatrix",
        "Online softmax",
        "tile_sum += S_rmem[mma_m][mma_n][i];",
        "if (i % 2 == 0) tile_sum += S_rmem[mma_m][mma_n][i];",
        says=("With V = 1 every O must be 1", "its own factor"),
    ),
    Fault(
        "the keys of V are in a different order from those of P",
        "07_ldmatrix",
        "B = V",
        "const int key = mma_k * 16 + lane_id % 16;",
        "const int key = mma_k * 16 + (lane_id % 16 * 5 + 3) % 16;",
        says=("that the P of one key is multiplied by the V of another", "where key 0 belongs, there is key 9"),
    ),
    Fault(
        "one piece of head_dim is read from the wrong place",
        "07_ldmatrix",
        "B = Kᵀ",
        "const int col = mma_k * 16 + lane_id / 8 % 2 * 8;",
        "const int col = (mma_k == 3 ? 5 : mma_k) * 16 + lane_id / 8 % 2 * 8;",
        says=("the fragments of Q or K", "columns 48–63; where K[0][48] (key, column) belongs, there is K[0][80]"),
    ),
    # What a first finding must say so that it does not mislead.
    Fault(
        "V begins in the middle of K",
        "05_cp_async",
        "Maximum and sum over",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim;",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim / 2;",
        "overlapping_copies",
        "Copy K and V + 4",
        first=True,
    ),
    Fault(
        "K and V are committed as one group",
        "05_cp_async",
        "all warps are done with the previous iteration's tiles + 2",
        "    cp_async_commit();",
        "",
        "race",
        "Copy Q + 1",
        first=True,
        waits_at="this thread's copies of K",
    ),
    Fault(
        "the stage after the one that was read is released",
        "13_decoupled_warps",
        "For each step of",
        "mbarrier_arrive(&empty[stage]);",
        "mbarrier_arrive(&empty[next_stage]);",
        "deadlock",
        "pieces of V + 8",
        first=True,
    ),
    Fault(
        "the parity changes with each tile instead of each round",
        "13_decoupled_warps",
        "For each K/V tile",
        "wait(&full[stage], kv_tile / kStages % 2);",
        "wait(&full[stage], kv_tile % 2);",
        "race",
        "pieces of K + 2",
        first=True,
        waits_at="For each K/V tile + 3",
    ),
    Fault(
        "V begins in the middle of K",
        "14_q_in_registers",
        "Waits until a phase of the barrier has ended",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim;  ",
        "Element* V_smem = K_smem + kBlockKV * kHeadDim / 2;  ",
        "overlapping_copies",
        "Copies this thread's share + 3",
        first=True,
    ),
    Fault(
        "a tile is waited for with the parity of the ring's first round",
        "14_q_in_registers",
        "For each K/V tile",
        "wait(&full[stage], kv_tile / kStages % 2);",
        "wait(&full[stage], 0);",
        "race",
        "S = Q Kᵀ + 4",
        first=True,
        waits_at="For each K/V tile + 3",
    ),
    # Wrong results: interchanged rows, and keys.
    Fault(
        "P is stored in a different order of keys",
        "03_tiled",
        "P to shared memory",
        "&P_smem[(thread_col * kKeys + key) * kBlockQ",
        "&P_smem[(key * kThreadCols + thread_col) * kBlockQ",
        says=("that the P of one key is multiplied by the V of another",),
    ),
    Fault(
        "two registers of a fragment of P are swapped",
        "06_swizzle",
        "P to 16 bits",
        """S_rmem[mma_m][2 * mma_k + i / 2];
          P_rmem[mma_m][mma_k][i] = pack<Element>(S[i % 2 * 2], S[i % 2 * 2 + 1]);""",
        """S_rmem[mma_m][2 * mma_k + i % 2];
          P_rmem[mma_m][mma_k][i] = pack<Element>(S[i / 2 * 2], S[i / 2 * 2 + 1]);""",
        says=("Suggests that rows are mixed up: fragments of P hold elements of other rows",),
    ),
    Fault(
        "a row sum is not rescaled",
        "02_online_softmax",
        "l",
        "row_sum = row_sum * rescale + p;",
        "row_sum = row_sum + p;",
        suggests="sum_not_rescaled",
    ),
    Fault(
        "the same K tile is copied again",
        "08_pipelined_kv",
        "Copy the next K",
        "K_gmem + next_kv_row * args.K.row_stride",
        "K_gmem + kv_row * args.K.row_stride",
        suggests="K_tile_before",
    ),
    Fault(
        "the new maximum is not kept",
        "07_ldmatrix",
        "m",
        "        row_max[mma_m][half] = new_max;",
        "",
        says=("With V = 1 every O must be 1, but is NaN or infinite.",),
    ),
    # Typing mistakes, to test that `harness --debug` leads to them.
    Fault(
        "two elements of a register of P are swapped",
        "07_ldmatrix",
        "two neighbouring keys",
        "pack<Element>(S[i % 2 * 2], S[i % 2 * 2 + 1])",
        "pack<Element>(S[i % 2 * 2 + 1], S[i % 2 * 2])",
        suggests="V_rows_xor_1",
    ),
    Fault(
        "a sum covers only two lanes of four",
        "07_ldmatrix",
        "Maximum and sum over",
        "return x + __shfl_xor_sync(0xffffffff, x, 2);",
        "return x;",
        says=("With V = 1 every O must be 1",),
    ),
    Fault(
        "lanes store each other's columns of O",
        "07_ldmatrix",
        "Normalise and store O",
        "mma_n * 8 + lane_id % 4 * 2)",
        "mma_n * 8 + (lane_id % 4 ^ 1) * 2)",
        suggests="V_columns_xor_2",
    ),
    Fault(
        "O is rescaled by the factor of the other row",
        "07_ldmatrix",
        "O = O · r",
        "*= rescale[mma_m][i / 2];",
        "*= rescale[mma_m][1 - i / 2];",
        says=("Keys truncated: right with 1 K/V tile, wrong with 2",),
    ),
    Fault(
        "V is a tile behind K",
        "07_ldmatrix",
        "Copy K and V",
        "V_gmem + kv_row * args.V.row_stride",
        "V_gmem + max(kv_row - kBlockKV, 0) * args.V.row_stride",
        suggests="V_tile_before",
    ),
    Fault(
        "the base of the exponential is forgotten",
        "12_optimized_softmax",
        "log2(e)",
        "args.softmax_scale * 1.44269504f;",
        "args.softmax_scale;",
        suggests="log2e_left_out",
    ),
    Fault(
        "P is relative to the old maximum",
        "12_optimized_softmax",
        "Make O, the row sums and P relative to the new maximum",
        "      exponentials<Traits>(P_rmem, new_sum, S_rmem, row_max, scale);",
        "      ",
    ),
    Fault(
        "a row sum is overwritten instead of accumulated",
        "12_optimized_softmax",
        "l += Σ P",
        "row_sum[mma_m][half] += new_sum[mma_m][half];",
        "row_sum[mma_m][half] = new_sum[mma_m][half];",
        says=("Keys truncated: right with 1 K/V tile, wrong with 2", "With V = 1 every O must be 1"),
    ),
    Fault(
        "V's fragments all go to one buffer",
        "12_optimized_softmax",
        "O += P V",
        "load_V_fragments<Traits>(V_rmem[next % 2], V_smem",
        "load_V_fragments<Traits>(V_rmem[0], V_smem",
    ),
    Fault(
        "a fragment of Q is one mma_k behind",
        "12_optimized_softmax",
        "S = Q Kᵀ",
        "load_Q_fragments<Traits>(Q_rmem[next_mma_k % 2], Q_smem, Q_lane, next_mma_k);",
        "load_Q_fragments<Traits>(Q_rmem[next_mma_k % 2], Q_smem, Q_lane, mma_k);",
    ),
    Fault(
        "both halves of a warp multiply the same fragment of Q",
        "11_wide_warps",
        "S = Q Kᵀ",
        "Q_rmem[mma_k % 2][mma_m],",
        "Q_rmem[mma_k % 2][0],",
        says=("the first K/V tile alone is wrong already", "rows 16–31 modulo 32 (mma_m 1 of every warp)"),
    ),
]

# Features of sm_90a only: asynchronous work with mistakes that a GPU hides, and that no other tool detects.
WGMMA_OF_S = "the softmax has read the previous S + 2"
WGMMA_OF_PV = "P has been packed + 2"
FIRST_USE_OF_S = "Online softmax: replaces + 7"
LOAD_OF_KV = "Only thread 0 calls these + 7"
STORE_OF_O = "and so are those of the whole warpgroup + 2"
WAIT = "Waits until a phase of the barrier has ended + 2"

HOPPER_FAULTS = [
    # 17: wgmma, with copies by the threads.
    Fault(
        "the tensor cores do not see what was copied",
        "17_wgmma",
        "and is visible to the tensor cores",
        "fence_proxy_async();  // and is visible to the tensor cores,",
        "// and is visible to the tensor cores,",
        "missing_fence",
        "Starts copying + 5",
    ),
    Fault(
        "no fence before S, nor before any other wgmma",
        "17_wgmma",
        "the softmax has read the previous S",
        "wgmma_fence();  // the softmax has read the previous S",
        "",
        "missing_fence",
        WGMMA_OF_S,
    ),
    Fault(
        "no fence between the packing of P and its wgmma",
        "17_wgmma",
        "P has been packed",
        "wgmma_fence();  // P has been packed, and O rescaled",
        "",
        "missing_fence",
        WGMMA_OF_PV,
    ),
    Fault(
        "the softmax does not wait for S",
        "17_wgmma",
        "S = Q Kᵀ",
        "wgmma_wait<0>();",
        "",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "O is used before its wgmmas have completed",
        "17_wgmma",
        "O += P V",
        "wgmma_wait<0>();",
        "",
        "in_flight",
        "Multiplies each row of O by its factor + 3",
    ),
    Fault(
        "the wgmmas of S are in no group",
        "17_wgmma",
        "Starts S = Q Kᵀ",
        "  wgmma_commit();",
        "",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "the next tile is copied over the one that is being read",
        "17_wgmma",
        "What this CTA computes",
        "const int stage = kv_tile % kStages;",
        "const int stage = (kv_tile + 1) % kStages;",
        "race",
        WGMMA_OF_S,
    ),
    # 18: TMA.
    Fault(
        "the descriptor of K has a different swizzle from its tensor map",
        "18_tma",
        "Starts S = Q Kᵀ",
        "K = matrix_descriptor(K_smem, 0, 1024);",
        "K = matrix_descriptor(K_smem, 0, 1024) ^ std::uint64_t{3} << 62;",
        "layout_mismatch",
        LOAD_OF_KV,
    ),
    Fault(
        "fewer bytes are expected than arrive",
        "18_tma",
        "Only thread 0 calls these",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize);",
        "transaction_count",
        LOAD_OF_KV,
    ),
    Fault(
        "no fence follows the initialisation of the barriers",
        "18_tma",
        "A barrier's phase ends",
        "fence_mbarrier_init();",
        "",
        "missing_fence",
        "Only thread 0 calls these + 3",
    ),
    Fault(
        "the barriers are used before they are initialised",
        "18_tma",
        "the barriers are initialised",
        "__syncthreads();  // the barriers are initialised",
        "",
        "race",
        "A barrier's phase ends + 2",
    ),
    Fault(
        "the wrong parity is waited for",
        "18_tma",
        "For each K/V tile",
        "parity = kv_tile / kStages % 2;",
        "parity = (kv_tile / kStages + 1) % 2;",
        "race",
        WGMMA_OF_S,
    ),
    Fault(
        "no warp waits for V",
        "18_tma",
        "O += P V",
        "wait(&V_full[stage], parity);",
        "",
        "race",
        WGMMA_OF_PV,
    ),
    Fault(
        "only one warp waits for Q",
        "18_tma",
        "Only thread 0 calls these",
        "wait(Q_full, 0);",
        "if (warp_id == 0) wait(Q_full, 0);",
        "race",
        "Only thread 0 calls these + 3",
    ),
    Fault(
        "the parity changes with each tile instead of each round",
        "18_tma",
        "For each K/V tile",
        "parity = kv_tile / kStages % 2;",
        "parity = kv_tile % 2;",
        "race",
        WGMMA_OF_S,
        first=True,
        waits_at="S = Q Kᵀ + 1",
    ),
    Fault(
        "V is copied to K's ring",
        "18_tma",
        "Only thread 0 calls these",
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
        "S = Q Kᵀ",
        "wgmma_wait<0>();\n    pin(S_rmem);\n    release(&K_empty[K_next.stage]);",
        "release(&K_empty[K_next.stage]);\n    wgmma_wait<0>();\n    pin(S_rmem);",
        "race",
        WGMMA_OF_S,
    ),
    Fault(
        "V is never released",
        "19_warp_specialized",
        "O += P V",
        "release(&V_empty[V_next.stage]);",
        "",
        "deadlock",
        WAIT,
    ),
    Fault(
        "the producer waits for buffers that were never filled",
        "19_warp_specialized",
        "The producer",
        "PipelineState<kStages> K_next{1}, V_next{1};",
        "PipelineState<kStages> K_next{0}, V_next{1};",
        "deadlock",
        WAIT,
    ),
    Fault(
        "the producer does not wait for empty buffers",
        "19_warp_specialized",
        "The producer",
        "wait(&empty[stage], next.parity);",
        "",
        "race",
        "The producer + 14",
    ),
    # 20: two consumers, and the registers for them.
    Fault(
        "more registers are requested than exist",
        "20_two_consumers",
        "per thread + 1",
        "kConsumerRegisters = 240;",
        "kConsumerRegisters = 248;",
        "deadlock",
        "The consumers + 1",
    ),
    Fault(
        "the producer keeps its registers",
        "20_two_consumers",
        "The producer",
        "keep_registers<Traits::kProducerRegisters>();",
        "",
        "deadlock",
        "The consumers + 1",
    ),
    Fault(
        "K's barrier counts the warps of one consumer",
        "20_two_consumers",
        "A phase of `full` ends",
        "mbarrier_init(&K_empty[stage], Traits::kConsumers * 4);",
        "mbarrier_init(&K_empty[stage], 4);",
        "deadlock",
        WAIT,
    ),
    # 22: O by TMA.
    Fault(
        "TMA does not see O",
        "22_tma_store",
        "this thread's writes are visible to TMA",
        "fence_proxy_async();                   // this thread's writes are visible to TMA,",
        "// this thread's writes are visible to TMA,",
        "missing_fence",
        STORE_OF_O,
    ),
    Fault(
        "O is stored before all warps have written it",
        "22_tma_store",
        "and so are those of the whole warpgroup",
        "named_barrier_sync(warp_id / 4, 128);",
        "",
        "race",
        STORE_OF_O,
    ),
    Fault(
        "the block ends while O is still being read",
        "22_tma_store",
        "shared memory exists only as long as the CTA",
        "if (is_leader) tma_store_wait_read();  // shared memory exists only as long as the CTA",
        "// shared memory exists only as long as the CTA",
        "in_flight",
        STORE_OF_O,
    ),
    Fault(
        "the store of O is in no group",
        "22_tma_store",
        "Normalise O",
        "tma_store_commit();",
        "",
        "in_flight",
        STORE_OF_O,
    ),
    Fault(
        "the next Q is copied over an O that is still being read",
        "22_tma_store",
        "Releases Q's buffer once O's store has read it",
        "    tma_store_wait_read();",
        "",
        "race",
        STORE_OF_O,
    ),
    # 20 to 22: a parity that could mean another phase.
    Fault(
        "the other buffer of V is released",
        "20_two_consumers",
        "O += P V",
        "release(&V_empty[V_next.stage]);",
        "release(&V_empty[K_next.stage]);",
        "race",
        WAIT,
    ),
    Fault(
        "the producer waits for the other buffer of Q",
        "21_persistent",
        "The producer",
        "wait(&Q_empty[Q_next.stage], Q_next.parity);",
        "wait(&Q_empty[V_next.stage], Q_next.parity);",
        "race",
        WAIT,
    ),
    Fault(
        "all lanes but one release a buffer",
        "22_tma_store",
        "The consumers",
        "if (lane_id == 0) mbarrier_arrive(barrier);",
        "if (lane_id != 0) mbarrier_arrive(barrier);",
        "race",
        WAIT,
    ),
    # 23: two products in flight at a time.
    Fault(
        "the softmax waits for no product at all",
        "23_overlap",
        "S = Q Kᵀ",
        "wgmma_wait<1>();",
        "wgmma_wait<2>();",
        "in_flight",
        FIRST_USE_OF_S,
    ),
    Fault(
        "P is packed while P V reads it",
        "23_overlap",
        "Online softmax. Rows of the next query tile start afresh",
        "wgmma_wait<0>();",
        "wgmma_wait<1>();",
        "in_flight",
        "two neighbouring keys",
    ),
    # 26: turns.
    Fault(
        "a consumer keeps its turn",
        "26_ping_pong",
        "S = Q Kᵀ",
        "named_barrier_arrive(next_turn, 256);",
        "",
        "deadlock",
        "S = Q Kᵀ + 3",
    ),
    Fault(
        "a query tile's sums continue from those of the previous one",
        "26_ping_pong",
        "Normalise O",
        "row_sum[0] = new_sum[0];",
        "row_sum[0] += new_sum[0];",
        says=("With all SMs, where each CTA has one query tile, it is right",),
    ),
    # The faults in the chapters.
    Fault(
        "K advances by 64 bytes where Q advances by 32",
        "17_wgmma",
        "Starts S = Q Kᵀ",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32)",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 64)",
    ),
    Fault(
        "more bytes are expected than arrive",
        "18_tma",
        "Only thread 0 calls these",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element) + 16);",
        "deadlock",
        WAIT,
    ),
    Fault(
        "`empty` is initialised with the number of threads, but one lane per warp arrives",
        "19_warp_specialized",
        "A phase of `full` ends",
        "mbarrier_init(&K_empty[stage], 4);",
        "mbarrier_init(&K_empty[stage], 128);",
        "deadlock",
        WAIT,
    ),
    Fault(
        "both consumers read the same queries",
        "20_two_consumers",
        "S = Q Kᵀ",
        "start_S<Traits>(S_rmem, Q_smem + warpgroup_row * kHeadDim, K_smem + K_next.stage * kKVSize);",
        "start_S<Traits>(S_rmem, Q_smem, K_smem + K_next.stage * kKVSize);",
    ),
    Fault(
        "a query tile is assigned to another head",
        "21_persistent",
        "Query tiles are numbered head by head",
        "return q_tile / q_tiles_per_head % args.heads;",
        "return q_tile % args.heads;",
    ),
    Fault(
        "O is not swizzled",
        "22_tma_store",
        "The offset of element",
        "const int chunk = ((col / kChunk) ^ row) % 8;",
        "const int chunk = col / kChunk % 8;",
    ),
    Fault(
        "V is a tile ahead of P",
        "23_overlap",
        "V is copied one step after K",
        "copy_V(q_tile, kv_tile - 1);",
        "copy_V(q_tile, kv_tile);",
    ),
    Fault(
        "O is not rescaled when the maximum changes",
        "24_lazy_rescale",
        "O = O · r",
        "        scale_rows<Traits>(O_rmem, rescale);",
        "",
    ),
    Fault(
        "a first sum has no upper limit",
        "25_first_guess",
        "All lanes must decide together",
        "new_sum[0] >= least && new_sum[0] < Traits::kMostSum && new_sum[1] >= least && new_sum[1] < Traits::kMostSum;",
        "new_sum[0] >= least && new_sum[1] >= least;",
    ),
    Fault(
        "a first sum's lower limit is tested for the rows of one half",
        "25_first_guess",
        "All lanes must decide together",
        "new_sum[0] >= least && new_sum[0] < Traits::kMostSum && new_sum[1] >= least && new_sum[1] < Traits::kMostSum;",
        "new_sum[1] >= least && new_sum[0] < Traits::kMostSum && new_sum[1] >= least && new_sum[1] < Traits::kMostSum;",
    ),
    # The earlier code: fp16 loses keys that the sum keeps. Only the adversarial inputs notice.
    *in_each(
        ("25_first_guess", "26_ping_pong", "27_three_consumers"),
        "a guess may be 2^6 above the maximum",
        "All lanes must decide together",
        "is_first ? Traits::kBlockKV / 4 : 0;",
        "is_first ? 1.0f / 64 : 0;",
    ),
    Fault(
        "no consumer gets the first turn",
        "26_ping_pong",
        "the first slot is the first consumer's",
        "if (next_turn == 4) named_barrier_arrive(next_turn, 256);",
        "",
        "deadlock",
        "S = Q Kᵀ + 3",
    ),
    Fault(
        "one key too many is left unmasked",
        "27_three_consumers",
        "The last tile may have fewer",
        ">= args.seq_len_kv % kBlockKV)",
        "> args.seq_len_kv % kBlockKV)",
    ),
    Fault(
        "the tile that comes last is masked",
        "28_key_order",
        "The last tile, which comes first",
        "args.seq_len_kv % kBlockKV != 0 ? 0 : -1;",
        "args.seq_len_kv % kBlockKV != 0 ? num_kv_tiles - 1 : -1;",
    ),
    Fault(
        "tiles are visited twice",
        "28_key_order",
        "Multiples of the golden ratio spread evenly",
        "while (std::gcd(kv_stride, num_kv_tiles) != 1) ++kv_stride;",
        "kv_stride = num_kv_tiles / 2;",
    ),
    Fault(
        "sums keep the old reference",
        "29_power_of_two",
        "All lanes must decide together",
        "        new_sum[half] *= rescale[half];",
        "",
    ),
    # The second pass computes `rescale` again, as 1. Only a maximum that leaves fp32 in a later step reveals it.
    Fault(
        "a redo forgets how much to rescale",
        "29_power_of_two",
        "All lanes must decide together",
        "if (redo || __all_sync(0xffffffff, in_range)) return redo;",
        "if (!redo && __all_sync(0xffffffff, in_range)) return redo;",
    ),
]
FAULTS += HOPPER_FAULTS

FAULTS += [
    Fault(
        "the last key that exists is masked",
        "any_length",
        "Mask keys",
        "i % 2 >= keys)",
        "i % 2 >= keys - 1)",
    ),
    Fault(
        "keys that do not exist are not masked",
        "any_length",
        "Mask keys",
        "S_rmem[mma_m][mma_n][i] = -INFINITY;",
        "S_rmem[mma_m][mma_n][i] *= 1;",
    ),
    Fault(
        "the first step is taken for a whole one",
        "any_length",
        "The first step, of the last keys",
        "args.seq_len_kv - last_step",
        "kStepKV",
    ),
    Fault(
        "rows of K and V that do not exist are read",
        "any_length",
        "Starts copying",
        "tile_gmem, row < rows);",
        "tile_gmem, true);",
        "out_of_bounds",
        "Starts copying + 4",
    ),
    Fault(
        "rows of Q that do not exist are read",
        "any_length",
        "Loads this lane's share of Q",
        "min(first_row + mma_m * 16 + half * 8, args.seq_len - 1)",
        "(first_row + mma_m * 16 + half * 8)",
        "out_of_bounds",
        "Loads this lane's share of Q + 8",
    ),
    Fault(
        "rows of O that do not exist are written",
        "any_length",
        "Normalise and store O",
        "if (row < args.seq_len)",
        "if (true)",
        "out_of_bounds",
        "Normalise and store O + 15",
    ),
    Fault(
        "after a last tile without a middle, no tile is copied",
        "any_length",
        "The first step, of the last keys",
        "% kBlockKV < kBlockKV / 2) copy_next(",
        "% kBlockKV < 0) copy_next(",
        "deadlock",
        "For each further step + 5",
    ),
    Fault(
        "the log-sum-exp is that of powers of two",
        "log_sum_exp",
        "Store L",
        "* 0.693147181f;",
        "* 1;",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "the log-sum-exp of rows that do not exist is written",
        "log_sum_exp",
        "Store L",
        "row < args.seq_len && lane_id",
        "lane_id",
        "out_of_bounds",
        "Store L + 7",
    ),
    Fault(
        "the mask is aligned with the first key",
        "causal",
        "Row r of a query tile sees",
        "+ r + 1 + args.seq_len_kv - args.seq_len",
        "+ r + 1",
    ),
    Fault(
        "a row does not see its own key",
        "causal",
        "Row r of a query tile sees",
        "+ r + 1 + args.seq_len_kv",
        "+ r + args.seq_len_kv",
    ),
    Fault(
        "only the first step is masked",
        "causal",
        "For each further step",
        "step(kv_row, warp_keys - kv_row)",
        "step(kv_row, kStepKV)",
    ),
    Fault(
        "all rows of a warp see as many keys",
        "causal",
        "Mask keys that a row does not see",
        "mma_m * 16 + i / 2 * 8 + lane_id / 4",
        "0",
    ),
    Fault(
        "the maximum of a row that sees no key is -inf",
        "causal",
        "In each 16-row mma tile",
        "-FLT_MAX",
        "-INFINITY",
    ),
    Fault(
        "a warp does not release the tiles that only others read",
        "causal",
        "Tiles that only other warps read",
        "mbarrier_arrive(&empty[ring_tile % kStages]);",
        "",
        "deadlock",
        "During tile + 6",
    ),
    Fault(
        "a warp does not copy during tiles that only others read",
        "causal",
        "Tiles that only other warps read",
        "copy_next(ring_tile, last_ring_tile - ring_tile);",
        "",
        "deadlock",
        "The first step, of the last keys + 2",
    ),
    Fault(
        "causal attention sees keys to the right",
        "window",
        "Query i sees the keys from",
        "args.causal ? 0 : ",
        "",
    ),
    Fault(
        "the window is one key wider at its begin",
        "window",
        "Mask keys that a row does not see",
        "key < row_end - width",
        "key < row_end - width - 1",
    ),
    Fault(
        "the steps that the window's begin cuts are not masked",
        "window",
        "For each further step",
        "max(warp_end + kMmaM * 16 - 1 - width, first_step)",
        "first_step",
    ),
    Fault(
        "whole steps begin with the first key of a warp's first row",
        "window",
        "For each further step",
        "warp_end + kMmaM * 16 - 1 - width",
        "warp_end - width",
    ),
    Fault(
        "a warp ends with the first key of its last row",
        "window",
        "Tiles that only other warps read",
        "first_key_of(q_tile, warp_row)",
        "first_key_of(q_tile, warp_row + kMmaM * 16 - 1)",
    ),
    Fault(
        "a warp does not release the tiles after its last step",
        "window",
        "The tiles after a warp's last step",
        "pass_tiles(warp_last_ring_tile + 1, last_ring_tile + 1);",
        "",
        "deadlock",
        "During tile + 7",
    ),
    Fault(
        "no tile is copied during a last step in the second half of a tile",
        "window",
        "The tiles after a warp's last step",
        "% kBlockKV >= kBlockKV / 2) copy_next(",
        "% kBlockKV >= kBlockKV) copy_next(",
        "deadlock",
        "During tile + 7",
    ),
    Fault(
        "heads share those of K and V in turn instead of in groups",
        "grouped_heads",
        "The head of a query tile",
        "head_of(q_tile) % args.heads / sharing_heads",
        "head_of(q_tile) % (args.heads / sharing_heads)",
    ),
    Fault(
        "the masks are aligned with the length of all",
        "lengths",
        "Row r of a query tile sees",
        "right - queries_of(q_tile)",
        "right - args.seq_len",
    ),
    Fault(
        "rows of O that are padding are a copy of the last one",
        "lengths",
        "Normalise and store O",
        "if (row >= seq_len) chunk = {};",
        "",
    ),
    Fault(
        "the next query tile has as many keys as this one",
        "lengths",
        "During tile",
        "keys_of(next_q_tile));",
        "seq_len_kv);",
    ),
    Fault(
        "keys that are padding are seen",
        "lengths",
        "Mask keys that a row does not see",
        "min(row_end, seq_len_kv)",
        "min(row_end, args.seq_len_kv)",
    ),
    Fault(
        "the log-sum-exp of padding is that of the last row",
        "lengths",
        "Store L",
        "row < seq_len ?",
        "true ?",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "the scale comes after the cap",
        "scores",
        "Change the scores",
        "S * scale_to_cap",
        "S * scale_to_cap / args.softmax_scale",
    ),
    Fault(
        "distances are those of queries that begin with the first key",
        "scores",
        "If kWindow, the CTA that had",
        "+ warp_row + seq_len_kv - seq_len;",
        "+ warp_row;",
    ),
    Fault(
        "all rows of a warp have the distance of its first",
        "scores",
        "Change the scores",
        "mma_m * 16 + i / 2 * 8 - mma_n",
        "i / 2 * 8 - mma_n",
    ),
    Fault(
        "keys after the query become more likely",
        "scores",
        "Change the scores",
        "fabsf(static_cast",
        "(static_cast",
    ),
    Fault(
        "the sink takes no weight",
        "scores",
        "Store L",
        "row_sum[mma_m][half] += exp2_approx(sink - row_max[mma_m][half]);",
        "",
    ),
    Fault(
        "the sink is a natural logarithm among those to base 2",
        "scores",
        "If kWindow, the CTA that had",
        "sinks[head] * kLog2e",
        "sinks[head]",
    ),
    Fault(
        "the log-sum-exp leaves the sink out",
        "scores",
        "Store L",
        "log2f(exp2_approx(L - larger) + exp2_approx(sink - larger))",
        "log2f(exp2_approx(L - larger))",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "the log-sum-exp is relative to the next query tile's first guess",
        "hopper_log_sum_exp",
        "Store L",
        "(row_max[half] + log2f(row_sum[half]))",
        "(kFirstGuess + log2f(row_sum[half]))",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "the log-sum-exp is a logarithm to base 2",
        "hopper_log_sum_exp",
        "Store L",
        "* 0.693147181f;",
        "* 1;",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "the log-sum-exp of rows that do not exist is written",
        "hopper_log_sum_exp",
        "Store L",
        "row < args.seq_len && lane_id",
        "lane_id",
        "out_of_bounds",
        "Store L + 6",
    ),
    Fault(
        "the mask is aligned with the first key",
        "hopper_causal",
        "Row r of a query tile",
        "r + 1 + args.seq_len_kv - args.seq_len",
        "r + 1",
    ),
    Fault(
        "a row does not see its own key",
        "hopper_causal",
        "Row r of a query tile",
        "r + 1 + args.seq_len_kv",
        "r + args.seq_len_kv",
    ),
    Fault(
        "tiles that the diagonal cuts are taken for whole ones",
        "hopper_causal",
        "Masks S if it is cut",
        "(place + 1) * kBlockKV <= min(",
        "place * kBlockKV < min(",
    ),
    Fault(
        "tiles are masked in the order of their positions",
        "hopper_causal",
        "S = Q Kᵀ",
        "num_kv_tiles - 1 - kv_tile",
        "kv_tile + 1",
    ),
    Fault(
        "the maximum of a row that sees no key is -inf",
        "hopper_causal",
        "All lanes must decide together",
        "-FLT_MAX",
        "-INFINITY",
    ),
    Fault(
        "the sum of a row that sees no key is a divisor",
        "hopper_causal",
        "Normalise O",
        "row_sum[0] > 0 ? 1 / row_sum[0] : 0",
        "1 / row_sum[0]",
    ),
    Fault(
        "a hidden tile is released before it is there",
        "hopper_causal",
        "Releases a tile that other consumers read",
        "    wait(&full[next.stage], next.parity);",
        "",
        "race",
        "The producer + 22",
    ),
    Fault(
        "the hidden tiles of V are not released",
        "hopper_causal",
        "P V has read it + 3",
        "for (int i = 0; i < num_hidden; ++i) skip(V_next, V_full, V_empty);",
        "",
        "deadlock",
        WAIT,
    ),
    Fault(
        "a box of O begins before the first query",
        "hopper_pairs",
        "Normalise O",
        "if (is_leader && row_of(q_tile) + warpgroup_row >= 0)",
        "if (is_leader)",
        "invalid_operation",
        "a box must not begin before the tensor + 1",
    ),
    Fault(
        "the log-sum-exp of rows before the first query is written",
        "hopper_pairs",
        "Store L",
        "row >= 0 && row < args.seq_len",
        "row < args.seq_len",
        "out_of_bounds",
        "Store L + 6",
    ),
    Fault(
        "the last of an odd number of heads is paired with one that does not exist",
        "hopper_pairs",
        "Query tiles are placed head by head",
        "end = min(first + of_two_heads, num_q_tiles);",
        "end = first + of_two_heads;",
        "out_of_bounds",
        "Store L + 6",
    ),
    Fault(
        "a CTA continues with the second half of a pair",
        "hopper_pairs",
        "If causal, a CTA gets both",
        "2 * gridDim.x - 1",
        "2 * gridDim.x",
    ),
    Fault(
        "heads of Q take the heads of K and V in turn",
        "hopper_grouped_heads",
        "The producer",
        "head_of(q_tile) / group, batch_of(q_tile),",
        "head_of(q_tile) % group, batch_of(q_tile),",
    ),
    Fault(
        "a head of K and V is shared by as many heads as there are of K and V",
        "hopper_grouped_heads",
        "Multiples of the golden ratio",
        "args.heads / args.kv_heads);",
        "args.kv_heads);",
    ),
    Fault(
        "a row sees a key too many on the left",
        "hopper_window",
        "Masks S if it is cut",
        "(kWindow && key < first)",
        "(kWindow && key + 1 < first)",
    ),
    Fault(
        "tiles that the left edge cuts are taken for whole ones",
        "hopper_window",
        "Masks S if it is cut",
        "place * kBlockKV >= end + 63 - width",
        "place * kBlockKV >= end - width",
    ),
    Fault(
        "a row's own key does not count in the width of the window",
        "hopper_window",
        "Multiples of the golden ratio",
        "left + right + 1, right);",
        "left + right, right);",
    ),
    Fault(
        "the window has no limit on the right",
        "hopper_window",
        "A side without a limit",
        "args.causal ? 0 : limit(args.window_right);",
        "args.causal ? 0 : all;",
    ),
    Fault(
        "a consumer leaves out the tile where a narrow window starts",
        "hopper_window",
        "The tiles that rows with ends",
        "start + 1) - begin",
        "1) - begin",
        "deadlock",
        WAIT,
    ),
    Fault(
        "hidden tiles are skipped after the first tile",
        "hopper_window",
        "After the first tile comes",
        "kv_tile == start - kv_tiles.begin",
        "kv_tile == 0",
    ),
    Fault(
        "after the wrap, tiles are masked as if it had not happened",
        "hopper_window",
        "S = Q Kᵀ",
        "(kWindow && start - kv_tile > kv_tiles.begin ? 0 : num_kv_tiles)",
        "(kWindow && start - kv_tile > kv_tiles.begin ? 0 : 0)",
    ),
    Fault(
        "the last CTA of a round moves on like all others",
        "hopper_window",
        "If causal, a CTA gets both",
        "((q_tile + 1) % gridDim.x == 0 ? 1 : gridDim.x + 1)",
        "(gridDim.x + 1)",
    ),
    Fault(
        "the scale comes after the cap",
        "hopper_scores",
        "Multiples of the golden ratio",
        "args.softmax_scale / args.softcap",
        "1 / args.softcap",
    ),
    Fault(
        "distances grow with the limit on the right",
        "hopper_scores",
        "Changes the scores",
        "end - 1 - right",
        "end - 1",
    ),
    Fault(
        "all warps have the distances of the first",
        "hopper_scores",
        "Changes the scores",
        "warp_id % 4 * 16 + lane_id / 4",
        "lane_id / 4",
    ),
    Fault(
        "keys after the query become more likely",
        "hopper_scores",
        "Changes the scores",
        "fabsf(distance",
        "(distance",
    ),
    Fault(
        "a query tile has the slope of the previous one",
        "hopper_scores",
        "After the first tile comes",
        "slope_of(next_of(q_tile))",
        "slope_of(q_tile)",
    ),
    Fault(
        "the sink takes no weight",
        "hopper_scores",
        "Store L",
        "row_sum[half] += exp2_approx(sink - row_max[half]);",
        "row_sum[half] += 0;",
    ),
    Fault(
        "the sink is a natural logarithm among those to base 2",
        "hopper_scores",
        "Store L",
        "sinks[head_of(q_tile)] * kLog2e",
        "sinks[head_of(q_tile)]",
    ),
    Fault(
        "the log-sum-exp leaves the sink out",
        "hopper_scores",
        "Store L",
        "log2f(exp2_approx(L - larger) + exp2_approx(sink - larger))",
        "log2f(exp2_approx(L - larger))",
        reason="the log-sum-exp of ",
    ),
    Fault(
        "changed scores with a window go through the causal kernel",
        "hopper_scores",
        "A side without a limit",
        "is_causal ? flash_attention<Traits, Mask::causal, true>",
        "true ? flash_attention<Traits, Mask::causal, true>",
    ),
    Fault(
        "keys beyond the last one are not masked",
        "D01_one_query",
        "S = Q Kᵀ",
        "+ group < num_keys ? score : -INFINITY;",
        "+ group < args.seq_len_kv + 99 ? score : -INFINITY;",
    ),
    Fault(
        "keys beyond the last one are read",
        "D01_one_query",
        "Copy K and V",
        "min(kv_row + i * Traits::kGroups + group, num_keys - 1)",
        "kv_row + i * Traits::kGroups + group",
        "out_of_bounds",
        "Copy K and V + 4",
    ),
    Fault(
        "only the lanes whose key exists take part in a sum",
        "D01_one_query",
        "S = Q Kᵀ",
        "const float score = group_sum<Traits>(sum) * scale;",
        "float score = 0; if (kv_row + 2 * i + group < num_keys) score = group_sum<Traits>(sum) * scale;",
        "missing_lanes",
        "Sums x over the lanes + 3",
    ),
    Fault(
        "the groups are added without a common maximum",
        "D01_one_query",
        "Merge the two groups",
        "const float rescale = exp2_approx(group_max - row_max);",
        "const float rescale = exp2_approx(0 * (group_max - row_max));",
    ),
    Fault(
        "a cache without keys has the sum 0 as a divisor",
        "D01_one_query",
        "Normalise and store O",
        "row_sum > 0 ? 1 / row_sum : 0;",
        "1 / row_sum;",
    ),
    Fault(
        "rows that are padding see the keys",
        "D01_one_query",
        "The keys that this query sees",
        "query >= lengths[batch]",
        "query > lengths[batch]",
    ),
    Fault(
        "heads of Q take the heads of K and V in turn, and not in groups",
        "D01_one_query",
        "What this warp computes",
        "head / (args.heads / kv_heads)",
        "head % kv_heads",
    ),
]

# Probes, not faults: these print a line for each row whose maximum changes when O is already relative to it, which is
# rare from 12 on.
RESCALE = "const float rescale = exp2_approx(row_max[mma_m][half] - new_max);"
MOVED = "O moves to a new maximum"
PROBES = in_each(
    LAZY,
    "how often O moves",
    "r",
    RESCALE,
    f'{RESCALE} if (lane_id % 4 == 0 && row_max[mma_m][half] > -INFINITY && rescale < 1) printf("{MOVED}\\n");',
)


def planted(fault: Fault, text: str, source: str) -> str:
    """The kernel's text with the fault. Raises PlaceError."""
    places = Places(text, source)
    part = places.part(fault.place)
    before, there, after = ("".join(f"{line}\n" for line in lines) for lines in (
        places.lines[: part.start], places.lines[part.start : part.stop], places.lines[part.stop :]))  # fmt: skip
    if (count := there.count(fault.old)) != 1:
        raise PlaceError(
            f"{source} has '{fault.old}' {count} times in '{fault.place}', where the fault '{fault.name}' replaces it"
        )
    return (before + there.replace(fault.old, fault.new) + after).removesuffix("\n")


def unplaced(fault: Fault, text: str, source: str) -> list[str]:
    """What the fault needs and the kernel's text does not have."""
    places = Places(text, source)
    missing = []
    for find in (
        lambda: planted(fault, text, source),
        *(lambda place=place: places.find(place) for place in (fault.at, fault.waits_at) if place),
    ):
        try:
            find()
        except PlaceError as error:
            missing.append(f"the fault '{fault.name}': {error}")
    return missing


def broken(fault: Fault, source: Path) -> str:
    """The same, in its own namespace and under its own name."""
    text = planted(fault, source.read_text(encoding="utf-8"), str(source))
    namespace = fault.kernel if fault.is_extension else f"v{fault.kernel.split('_')[0]}"
    text = text.replace(f"flash_ladder::{namespace}", f"flash_ladder::{fault.version}")
    text = text.replace(".source = __FILE__", f'.source = "kernels/extensions/{fault.version}.cu"')
    # The first configuration is enough, and compiles in a fraction of the time.
    text = re.sub(r"(\.configurations =\s*\{configuration<.*?\)),.*?\},\n\}\);", r"\1},\n});", text, flags=re.DOTALL)
    return f'#include <cstdio>\n#line 1 "{source.as_posix()}"\n{text}'


def lines_of(source: Path, place: str) -> range:
    """The numbers of the lines of a place, from 1."""
    found = Places(source.read_text(encoding="utf-8"), source.name).find(place)
    return range(found.start + 1, found.stop + 1)


def main() -> None:
    if sys.argv[1:] == ["--kernels"]:
        print(";".join(sorted({fault.file for fault in FAULTS})), end="")
        return
    output, *kernels = sys.argv[1:]
    faults = [fault for fault in (*FAULTS, *PROBES) if fault.file in kernels]
    missing = []
    for fault in faults:
        source = KERNELS / f"{fault.file}.cu"
        missing += unplaced(fault, source.read_text(encoding="utf-8"), f"kernels/{fault.file}.cu")
    if missing:
        sys.exit("planted_faults.py: adapt these to the kernels:\n  " + "\n  ".join(dict.fromkeys(missing)))
    texts = [broken(fault, KERNELS / f"{fault.file}.cu") for fault in faults]
    Path(output).write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
