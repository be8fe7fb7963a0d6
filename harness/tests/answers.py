"""Answers to the assignments, for tests of their points: cheats, honest answers in various styles, and partial ones.
Each is text made from the course's starter or reference answer."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness" / "grader"))
from assignment import Assignment


@dataclasses.dataclass(frozen=True)
class Answer:
    assignment: str
    name: str
    write: Callable[[Assignment], str]


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def from_reference(*changes: tuple[str, str]) -> Callable[[Assignment], str]:
    return lambda assignment: changed(assignment.reference_answer(), *changes)


def from_starter(*changes: tuple[str, str]) -> Callable[[Assignment], str]:
    return lambda assignment: changed(assignment.starter(), *changes)


# ---- Cheats ----

SCALAR = """
#include "attention.h"
#include "convert.h"
#include "ptx.h"

namespace flash_ladder::submission {{

template <typename E>
struct Traits {{
  using Element = E;
}};

// Every thread computes whole rows of O, straight from global memory.
template <typename Traits>
__global__ void flash_attention(AttentionArgs args) {{
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  extern __shared__ __align__(16) char smem[];
  float nothing = 0;
  {dummy}
  for (int row = blockIdx.x * {rows} + threadIdx.x; row < (blockIdx.x + 1) * {rows}; row += blockDim.x) {{
    float o[{head_dim}] = {{}}, m = -1e30f, l = 0;
    const Element* q = args.Q.row<Element>(batch, head, row);
    for (int key = 0; key < args.seq_len_kv; ++key) {{
      const int own = row + args.seq_len_kv - args.seq_len;
      if ({masked}) continue;
      float s = 0;
      for (int d = 0; d < {head_dim}; ++d) s += to_float(q[d]) * to_float({k});
      s *= args.softmax_scale;
      const float new_m = fmaxf(m, s), r = __expf(m - new_m), p = __expf(s - new_m);
      m = new_m;
      l = l * r + p;
      for (int d = 0; d < {head_dim}; ++d) o[d] = o[d] * r + p * to_float({v});
    }}
    Element* to = args.O.row<Element>(batch, head, row);
    for (int d = 0; d < {head_dim}; ++d) to[d] = from_float<Element>(o[d] / l + 0.0f * nothing);
  }}
}}

template __global__ void flash_attention<Traits<__half>>(AttentionArgs);
template __global__ void flash_attention<Traits<__nv_bfloat16>>(AttentionArgs);

}}  // namespace flash_ladder::submission
"""

ONE_MMA = """
  {
    float d[4] = {};
    const std::uint32_t a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
    mma_m16n8k16<Element>(d, a, b);
    nothing = d[0];
  }
"""
ONE_LDMATRIX = """
  {
    *reinterpret_cast<uint4*>(smem + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    float d[4] = {};
    std::uint32_t a[4] = {1, 2, 3, 4}, b[4];
    ldmatrix_x4(b[0], b[1], b[2], b[3], smem + threadIdx.x % 32 * 16);
    mma_m16n8k16<Element>(d, a, reinterpret_cast<std::uint32_t(&)[2]>(b));
    nothing = d[0];
  }
"""
ONE_COPY = """
  {
    cp_async_16(smem + threadIdx.x * 16, args.Q.row<Element>(batch, head, blockIdx.x * 64) );
    cp_async_commit();
    cp_async_wait<0>();
    cp_async_wait<3>();
    __syncthreads();
    nothing = to_float(*reinterpret_cast<Element*>(smem));
  }
"""
ONE_SHARED_LOAD = """
  {
    reinterpret_cast<float*>(smem)[threadIdx.x] = 1;
    __syncthreads();
    nothing = reinterpret_cast<volatile float*>(smem)[threadIdx.x ^ 1];
  }
"""
# As many mmas, with fragments from ldmatrix, as the products need, without their operands.
ALL_MMAS = """
  {
    auto* chunks = reinterpret_cast<uint4*>(smem);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) chunks[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    float d[4] = {};
    for (int i = 0; i < 4 * args.seq_len_kv * HEAD_DIM / 256; ++i) {
      std::uint32_t a[4] = {1, 2, 3, 4}, b[4];
      ldmatrix_x4(b[0], b[1], b[2], b[3], smem + threadIdx.x % 32 * 16);
      mma_m16n8k16<Element>(d, a, reinterpret_cast<std::uint32_t(&)[2]>(b[0]));
      mma_m16n8k16<Element>(d, a, reinterpret_cast<std::uint32_t(&)[2]>(b[2]));
    }
    nothing = d[0];
  }
"""


def scalar(dummy: str = "") -> Callable[[Assignment], str]:
    def write(assignment: Assignment) -> str:
        values = assignment.values
        window = values.get("window")
        head_dim = values["head_dim"]

        def element(tensor: str) -> str:
            first, second = ("d", "key") if values.get(f"{tensor}_columns") else ("key", "d")
            return f"args.{tensor}.row<Element>(batch, head, {first})[{second}]"

        return SCALAR.format(
            dummy=dummy.replace("HEAD_DIM", str(head_dim)), head_dim=head_dim, k=element("K"), v=element("V"),
            rows=128 if window else 16 if assignment.name.startswith("02") else 64,
            masked=f"key > own || key < own - {window}" if window else "false",
        )  # fmt: skip

    return write


# All scores first, then one maximum: in the loop of 02.
OFFLINE = """
  // For each key, twice.
  for (int pass = 0; pass < 2; ++pass)
    for (int key = 0; key < args.seq_len_kv; ++key) {
      float k[kPerLane], v[kPerLane];
      load_row(k, K_gmem + key * args.K.row_stride, lane_id);
      float s = 0;
      for (int i = 0; i < kPerLane; ++i) s += q[i] * k[i];
      s = warp_sum(s) * args.softmax_scale;
      if (pass == 0) {
        row_max = fmaxf(row_max, s);
      } else {
        load_row(v, V_gmem + key * args.V.row_stride, lane_id);
        const float p = exp_approx(s - row_max);
        row_sum += p;
        for (int i = 0; i < kPerLane; ++i) O_rmem[i] += p * v[i];
      }
    }
"""
OFFLINE_KEPT = """
  // The scores are kept in {where}.
  {declare}
  for (int key = 0; key < args.seq_len_kv; ++key) {{
    float k[kPerLane];
    load_row(k, K_gmem + key * args.K.row_stride, lane_id);
    float s = 0;
    for (int i = 0; i < kPerLane; ++i) s += q[i] * k[i];
    s = warp_sum(s) * args.softmax_scale;
    scores[key] = s;
    row_max = fmaxf(row_max, s);
  }}
  __syncwarp();
  for (int key = 0; key < args.seq_len_kv; ++key) {{
    float v[kPerLane];
    load_row(v, V_gmem + key * args.V.row_stride, lane_id);
    const float p = exp_approx(scores[key] - row_max);
    row_sum += p;
    for (int i = 0; i < kPerLane; ++i) O_rmem[i] += p * v[i];
  }}
"""


def body_of_02(body: str, short: bool = False) -> Callable[[Assignment], str]:
    """The reference answer of 02 with another loop; `short`: only for rows of up to 128 keys it keeps the right one."""

    def write(assignment: Assignment) -> str:
        text = assignment.reference_answer()
        begin = text.index("  // For each ", text.index("float row_sum = 0;"))
        end = text.index("\n\n  // Normalise and store O.")
        if short:
            right = text[begin:end]
            return text[:begin] + f"  if (args.seq_len_kv <= 128) {{\n{right}\n  }} else {{\n{body}\n  }}" + text[end:]
        return text[:begin] + body + text[end:]

    return write


def without_ahead(assignment: Assignment) -> str:
    """05: the ring with a wait for every tile, and another wait that has no effect."""
    return changed(
        assignment.reference_answer(),
        ("cp_async_wait<kStages - 2>();", f"cp_async_wait<0>(); cp_async_wait<{assignment.values['stages'] - 2}>();"),
    )


def beside_mbarrier(assignment: Assignment) -> str:
    """05: the same, with copies that also arrive at an mbarrier for which nothing waits."""
    return changed(
        without_ahead(assignment),
        ("  // Copy Q. There is no commit here",
         "  __shared__ std::uint64_t unused;\n"
         "  if (threadIdx.x == 0) { mbarrier_init(&unused, 1); cp_async_mbarrier_arrive(&unused); }\n"
         "  // Copy Q. There is no commit here"),
    )  # fmt: skip


def tile_by_tile(assignment: Assignment) -> str:
    """05: cp.async, but each tile is requested when it is needed."""
    return changed(
        assignment.starter(),
        ("*reinterpret_cast<uint4*>(&tile_smem[smem_offset<Traits>(row, col)]) =\n"
         "        *reinterpret_cast<const uint4*>(&tile_gmem[row * row_stride + col]);",
         "cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);"),
        ("    __syncthreads();  // K, V and",
         "    cp_async_commit();\n    cp_async_wait<0>();\n    __syncthreads();  // K, V and"),
    )  # fmt: skip


def replaced_kernel(text: str, name: str, body: str) -> str:
    """A kernel with another body."""
    begin = text.index(f"__global__ void {name}(")
    begin = text.index("{\n", begin)
    end = text.index("\n}\n", begin)
    return text[:begin] + "{\n" + body + text[end:]


def puzzles_by_one_thread(assignment: Assignment) -> str:
    """00: the first two puzzles are right; in the others one thread does all the work, beside one dummy instruction."""
    values, text = assignment.values, assignment.reference_answer()
    joined = {"sum": "sum += x", "max": "sum = max(sum, x)"}
    text = replaced_kernel(
        text,
        "group_reduce",
        f"""
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float other = __shfl_xor_sync(0xffffffff, in[i], 1);
  if (i % {values["width"]} != 0) return;
  float sum = in[i];
  for (int j = 1; j < {values["width"]}; ++j) {{ const float x = in[i + j]; {joined[values["op"]]}; }}
  out[i / {values["width"]}] = sum + 0.0f * other;""",
    )
    text = replaced_kernel(
        text,
        "logsumexp",
        f"""
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows || threadIdx.x % 32 != 0) return;
  float m = -INFINITY, l = 0;
  for (int col = 0; col < cols; ++col) {{
    const float x = in[row * cols + col], new_m = fmaxf(m, x);
    l = l * {values["exp"]}(m - new_m) + {values["exp"]}(x - new_m);
    m = new_m;
  }}
  out[row] = m + {values["log"]}(l);""",
    )
    text = replaced_kernel(
        text,
        "cta_reduce",
        f"""
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = x[blockIdx.x * {values["threads"]}];
  for (int i = 1; i < {values["threads"]}; ++i) {{
    const int y = x[blockIdx.x * {values["threads"]} + i];
    {joined[values["cta_op"]].replace("x", "y").replace("may", "max")};
  }}
  out[blockIdx.x] = sum;""",
    )
    A = "k * 16 + m" if values["A_by_columns"] else "m * 16 + k"
    B = "k * 8 + n" if values["B_by_rows"] else "n * 16 + k"
    return replaced_kernel(text, "one_mma", f"""
  const std::uint32_t a[4] = {{}}, b[2] = {{}};
  float d[4] = {{}};
  mma_m16n8k16<__half>(d, a, b);
  for (int i = threadIdx.x; i < 128; i += 32) {{
    const int m = i / 8, n = i % 8;
    float sum = 0;
    for (int k = 0; k < 16; ++k)
      sum += to_float(reinterpret_cast<const __half*>(A)[{A}]) * to_float(reinterpret_cast<const __half*>(B)[{B}]);
    D[i] = sum;
  }}""")  # fmt: skip


def rewritten_bug_hunt(assignment: Assignment) -> str:
    """08: nothing was found; each kernel is a plain loop."""
    text = assignment.starter()
    text = replaced_kernel(
        text,
        "softmax_rows",
        """
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows || threadIdx.x % 32 != 0) return;
  float top = x[row * cols], sum = 0;
  for (int i = 0; i < cols; ++i) top = fmaxf(top, x[row * cols + i]);
  for (int i = 0; i < cols; ++i) sum += expf(x[row * cols + i] - top);
  for (int i = 0; i < cols; ++i) y[row * cols + i] = expf(x[row * cols + i] - top) / sum;""",
    )
    text = replaced_kernel(
        text,
        "column_sums",
        """
  const int col = threadIdx.x % 64, part = threadIdx.x / 64;
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile)
    for (int row = 0; row < 8; ++row) sum += x[(tile * 16 + part * 8 + row) * 64 + col];
  out[threadIdx.x] = sum;""",
    )
    text = replaced_kernel(
        text,
        "scores",
        """
  const __half* q = reinterpret_cast<const __half*>(Q);
  const __half* k = reinterpret_cast<const __half*>(K);
  for (int i = threadIdx.x; i < 256; i += 32) {
    float sum = 0;
    for (int d = 0; d < 64; ++d) sum += to_float(q[i / 16 * 64 + d]) * to_float(k[i % 16 * 64 + d]);
    S[i] = sum;
  }""",
    )
    text = replaced_kernel(
        text,
        "attend",
        """
  const int query = blockIdx.x * 4 + threadIdx.x / 32, d = threadIdx.x % 32;
  float top = -INFINITY, sum = 0, o = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int key = 0; key < keys; ++key) {
      float score = 0;
      for (int i = 0; i < 32; ++i) score += q[query * 32 + i] * K[key * 32 + i];
      if (pass == 0) top = fmaxf(top, score);
      if (pass == 1) sum += expf(score - top), o += expf(score - top) * V[key * 32 + d];
    }
  O[query * 32 + d] = o / sum;""",
    )
    turn = assignment.values["turn"]
    return replaced_kernel(text, "ring", f"""
  for (int tile = 0; tile < tiles; ++tile) {{
    const int at = {turn} * threadIdx.x;
    out[tile * 128 + threadIdx.x] = in[tile * 512 + at % 512] + in[tile * 512 + (at + 256) % 512];
  }}""")  # fmt: skip


def one_float_at_a_time(assignment: Assignment) -> str:
    """03: each operand is read when it is needed, by itself."""
    return changed(
        re.sub(r"(?<!void )load_smem\(", "load_one_by_one(", assignment.reference_answer()),
        ("template <typename Traits>\n__global__", """template <int n>
__device__ void load_one_by_one(float (&to)[n], const float* from) {
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = reinterpret_cast<const volatile float*>(from)[i];
}

template <typename Traits>
__global__"""),
    )  # fmt: skip


CHEATS = [
    Answer("00_puzzles", "one thread does the work", puzzles_by_one_thread),
    Answer("02_online_softmax", "a scalar kernel", scalar()),
    Answer("02_online_softmax", "offline", body_of_02(OFFLINE)),
    Answer("02_online_softmax", "offline beyond 128 keys", body_of_02(OFFLINE, short=True)),
    Answer(
        "02_online_softmax", "scores in shared memory",
        body_of_02(OFFLINE_KEPT.format(
            where="shared memory", declare="__shared__ float all[16][520]; float* scores = all[threadIdx.x / 32];"
        )),
    ),
    Answer(
        "02_online_softmax", "scores in local memory",
        body_of_02(OFFLINE_KEPT.format(where="local memory", declare="float scores[520];")),
    ),
    Answer("03_tiled", "a scalar kernel", scalar()),
    Answer("03_tiled", "a scalar kernel with a shared load", scalar(ONE_SHARED_LOAD)),
    Answer("03_tiled", "one float at a time", one_float_at_a_time),
    Answer("04_mma", "a scalar kernel with one mma", scalar(ONE_MMA)),
    Answer("04_mma", "a scalar kernel with one ldmatrix", scalar(ONE_LDMATRIX)),
    Answer("04_mma", "a scalar kernel beside all mmas", scalar(ALL_MMAS)),
    Answer("05_cp_async", "a scalar kernel", scalar()),
    Answer("05_cp_async", "a scalar kernel with one copy", scalar(ONE_COPY)),
    Answer("05_cp_async", "a wait for every tile", without_ahead),
    Answer("05_cp_async", "a wait for every tile, and an mbarrier without effect", beside_mbarrier),
    Answer("05_cp_async", "copies when they are needed", tile_by_tile),
    Answer("06_swizzle", "a scalar kernel", scalar()),
    Answer("06_swizzle", "a scalar kernel with one ldmatrix", scalar(ONE_LDMATRIX)),
    Answer("06_swizzle", "a scalar kernel beside all mmas", scalar(ALL_MMAS)),
    Answer("07_ldmatrix", "a scalar kernel with one mma", scalar(ONE_MMA)),
    Answer("07_ldmatrix", "a scalar kernel with one ldmatrix", scalar(ONE_LDMATRIX)),
    Answer("07_ldmatrix", "a scalar kernel beside all mmas", scalar(ALL_MMAS)),
    Answer("08_bug_hunt", "five kernels written anew", rewritten_bug_hunt),
    Answer("09_double_buffered_mma", "a scalar kernel with one ldmatrix", scalar(ONE_LDMATRIX)),
    Answer("09_double_buffered_mma", "a scalar kernel beside all mmas", scalar(ALL_MMAS)),
    Answer("16_overlapped_softmax", "a scalar kernel", scalar()),
]  # fmt: skip


# ---- Honest answers ----


def with_mbarriers(assignment: Assignment) -> str:
    """05: as its page proposes."""
    answer = changed(
        assignment.reference_answer(),
        ("  // Issues the copies of a tile, if there is one; its group may be empty.\n",
         "  __shared__ std::uint64_t full[Traits::kStages], empty[Traits::kStages];\n"
         "  if (threadIdx.x < Traits::kStages) {\n"
         "    mbarrier_init(&full[threadIdx.x], 128);\n"
         "    mbarrier_init(&empty[threadIdx.x], 128);\n"
         "  }\n"
         "  __syncthreads();\n"),
        ("      const int stage = tile % kStages;\n",
         "      const int stage = tile % kStages;\n"
         "      while (!mbarrier_test_wait(&empty[stage], tile / kStages % 2 ^ 1)) {}\n"),
        ("    }\n    cp_async_commit();\n", "      cp_async_mbarrier_arrive(&full[stage]);\n    }\n"),
        ("    copy_KV_tile(tile + kStages - 1);", ""),
        ("    __syncthreads();                  // and so", "    copy_KV_tile(tile + kStages - 1);  // and so"),
        ("    cp_async_wait<kStages - 2>();     // this", "    // this"),
        ("    // S = Q Kᵀ.\n",
         "    while (!mbarrier_test_wait(&full[tile % kStages], tile / kStages % 2)) {}\n    // S = Q Kᵀ.\n"),
    )  # fmt: skip
    end = answer.rindex("  }\n", 0, answer.index("\n  // Normalise and store O.") + 1)
    return answer[:end] + "    mbarrier_arrive(&empty[tile % kStages]);\n" + answer[end:]


def with_cuda_pipeline(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("cp_async_16(&", "__pipeline_memcpy_async(&"),
        ("tile_gmem[row * row_stride + col]);", "tile_gmem[row * row_stride + col], 16);"),
        ("cp_async_commit();", "__pipeline_commit();"),
        ("cp_async_wait<kStages - 2>();", "__pipeline_wait_prior(kStages - 2);"),
        ('#include "ptx.h"\n', '#include "ptx.h"\n\n#include <cuda_pipeline.h>\n'),
    )


def with_counted_stages(assignment: Assignment) -> str:
    """05: in a loop that the compiler must not unroll, with counters instead of remainders."""
    return changed(
        assignment.reference_answer(),
        ("  // For each K/V tile:\n", "  // For each K/V tile:\n  int stage_of_tile = 0;\n#pragma unroll 1\n"),
        ("K_smem + tile % kStages * kTile", "K_smem + stage_of_tile * kTile"),
        ("V_smem + tile % kStages * kTile", "V_smem + stage_of_tile * kTile"),
        ("    copy_KV_tile(tile + kStages - 1);",
         "    stage_of_tile = stage_of_tile + 1 == kStages ? 0 : stage_of_tile + 1;\n"
         "    copy_KV_tile(tile + kStages - 1);"),
    )  # fmt: skip


def renamed(assignment: Assignment) -> str:
    """Other names, other comments, other white space: the same answer."""
    text = re.sub(r"//(?! What is launched)[^\n]*", "", assignment.reference_answer())
    return re.sub(r"\bwarp_row\b", "first_row_of_warp", text)


def with_Q_in_registers(assignment: Assignment) -> str:
    """The fragments of Q are loaded once, and kept."""
    return changed(
        assignment.reference_answer(),
        ("  // For each K/V tile:\n",
         "  std::uint32_t Q_kept[kHeadDim / 16][kMmaM][4];\n  // For each K/V tile:\n"),
        ("load_Q_fragments<Traits>(Q_rmem, Q_smem, warp_row, mma_k);",
         "if (kv_row == 0) load_Q_fragments<Traits>(Q_kept[mma_k], Q_smem, warp_row, mma_k);\n"
         "#pragma unroll\n"
         "      for (int i = 0; i < kMmaM * 4; ++i) Q_rmem[i / 4][i % 4] = Q_kept[mma_k][i / 4][i % 4];"),
    )  # fmt: skip


def with_first_pieces_backwards(assignment: Assignment) -> str:
    """09: the first pieces of V are loaded in another order."""
    return changed(
        assignment.reference_answer(),
        ("for (int piece = 0; piece < kAhead; ++piece)", "for (int piece = kAhead - 1; piece >= 0; --piece)"),
    )


HONEST = [
    Answer("00_puzzles", "other comments", renamed),
    Answer("00_puzzles", "shuffles downwards", from_reference(
        ("if (lane_id == 0) out[row] = m +",
         "l = __shfl_sync(0xffffffff, l, 0);\n  if (lane_id == 0) out[row] = m +"))),
    Answer("02_online_softmax", "rescales only if the maximum moves", from_reference(
        ("    row_sum *= rescale;\n", "    if (rescale != 1) row_sum *= rescale;\n"))),
    Answer("02_online_softmax", "maximum of pairs", from_reference(
        ("new_max = fmaxf(new_max, score[j]);", "new_max = score[j] > new_max ? score[j] : new_max;"))),
    Answer("02_online_softmax", "shuffles downwards", lambda a: re.sub(
        r"(inline float warp_sum\(float x\) \{\n).*?\n\}", r"""\1  for (int step = 16; step > 0; step /= 2)
    x += __shfl_down_sync(0xffffffff, x, step);
  return __shfl_sync(0xffffffff, x, 0);
}""", a.reference_answer(), flags=re.DOTALL)),
    Answer("03_tiled", "other comments", renamed),
    Answer("03_tiled", "unrolled further", from_reference(("#pragma unroll 2\n", "#pragma unroll 4\n"))),
    Answer("04_mma", "other comments", renamed),
    Answer("04_mma", "Q in registers", with_Q_in_registers),
    Answer("05_cp_async", "mbarriers", with_mbarriers),
    Answer("05_cp_async", "cuda_pipeline.h", with_cuda_pipeline),
    Answer("05_cp_async", "a loop that is not unrolled", with_counted_stages),
    Answer("06_swizzle", "other comments", renamed),
    Answer("06_swizzle", "Q in registers", with_Q_in_registers),
    Answer("06_swizzle", "by an if", from_reference(
        ("const int chunk = (col / kChunk) ^ (row", "int chunk = col / kChunk;\n  chunk ^= (row"))),
    Answer("07_ldmatrix", "other comments", renamed),
    Answer("07_ldmatrix", "Q in registers", with_Q_in_registers),
    Answer("08_bug_hunt", "a check of its own", from_reference(
        ("  O[query * 32 + lane_id] = o / row_sum;",
         "  const float inverse = 1 / row_sum;\n  O[query * 32 + lane_id] = o * inverse;"))),
    Answer("09_double_buffered_mma", "other comments", renamed),
    Answer("09_double_buffered_mma", "the first pieces backwards", with_first_pieces_backwards),
    Answer("16_overlapped_softmax", "other comments", renamed),
]  # fmt: skip


# ---- Partial answers ----


def only(*parts: str) -> Callable[[Assignment], str]:
    """The starter with these of its parts taken from the reference answer."""

    def write(assignment: Assignment) -> str:
        text, answer = assignment.starter(), assignment.reference_answer()
        for region in assignment.data["starter"]["empty"]:
            if region.get("part") in parts:
                begin, end = assignment.region(text, region)
                text = text[:begin] + answer[slice(*assignment.region(answer, region))] + text[end:]
        return text

    return write


def with_rows_swapped(assignment: Assignment) -> str:
    """06: chunks of alternate rows change places, which separates two rows of each that conflict."""
    return re.sub(r"\^ \(row / (\d+) % \d+\)", r"^ (row / \1 % 2)", assignment.reference_answer())


def only_the_loop_bounds(assignment: Assignment) -> str:
    """16: tiles that no query of the CTA sees are skipped, and nothing else is better than in the starter."""
    return re.sub(
        r"  // For each K/V tile:\n.*?\{\n",
        """  // For each K/V tile:
  const int begin = max(0, q_key - Traits::kWindow) / kBlockKV * kBlockKV, end = min(args.seq_len_kv, q_key + kBlockQ);
  for (int kv_row = begin; kv_row < end; kv_row += kBlockKV) {
""",
        assignment.starter(), count=1, flags=re.DOTALL,
    )  # fmt: skip


def with_ladders_softmax(assignment: Assignment) -> str:
    """16: the reference answer without skipping what a single warp does not see."""
    return re.sub(r"const bool is_seen = .*;", "const bool is_seen = true;", assignment.reference_answer())


def every_tile(assignment: Assignment) -> str:
    """16: the softmax of 12 and the registers of 14 without regard to the mask."""
    text = re.sub(
        r"const int begin = .*;", "const int begin = 0, end = args.seq_len_kv;", assignment.reference_answer()
    )
    return re.sub(r"const bool is_seen = .*;", "const bool is_seen = true;", text)


def two_faults_of_bug_hunt(assignment: Assignment) -> str:
    text, answer = assignment.starter(), assignment.reference_answer()
    for kernel in ("softmax_rows", "attend"):
        begin = answer.index("{\n", answer.index(f"__global__ void {kernel}("))
        text = replaced_kernel(text, kernel, answer[begin + 2 : answer.index("\n}\n", begin)])
    return text


def starter(assignment: Assignment) -> str:
    return assignment.starter()


def reference(assignment: Assignment) -> str:
    return assignment.reference_answer()


# For each assignment, answers in the order in which a teacher would place them, the best last.
ORDERED: dict[str, list[tuple[str, Callable[[Assignment], str]]]] = {
    "00_puzzles": [
        ("the starter", starter),
        ("scale alone", from_starter(("i % rows, col = i / rows;  // TODO", "i / cols, col = i % cols;"))),
        ("logsumexp fails on empty lanes",
         lambda a: re.sub(r"\((l|other_l) > 0 \? (.*?) : 0\)", r"\2", a.reference_answer())),
        ("all", reference),
    ],
    "02_online_softmax": [
        ("the starter", starter),
        ("the sum of a warp", only("warp_sum()")),
        ("all but the loop", only("warp_sum()", "load_row() and store_row()")),
        ("no maximum", from_reference(("fmaxf(new_max, score[j])", "0.0f"))),
        ("rescaling for every key", lambda a: re.sub(
            r"(    // O \+= P V\.\n#pragma unroll\n.*?\{\n)", r"\1      row_sum *= exp_approx(row_max - new_max);\n",
            a.reference_answer(), count=1, flags=re.DOTALL).replace(
                "      const float p = exp_approx(score[j] - new_max);",
                "      const float p = exp_approx(score[j] - new_max) * exp_approx(new_max - row_max);")),
        ("all", reference),
    ],
    "03_tiled": [
        ("the starter", starter),
        ("S alone", only("S = Q Kᵀ")),
        ("S and the store of P", only("S = Q Kᵀ", "the store of P")),
        ("one float at a time", one_float_at_a_time),
        ("all", reference),
    ],
    "04_mma": [
        ("the starter", starter),
        ("Q alone", only("load_Q_fragments()")),
        ("Q and K", only("load_Q_fragments()", "load_K_fragments()")),
        ("one index of P wrong", from_reference(("2 * mma_k + i / 2]", "2 * mma_k + i % 2]"))),
        ("all", reference),
    ],
    "05_cp_async": [
        ("the starter", starter),
        ("copies when they are needed", tile_by_tile),
        ("a wait off by one", from_reference(("cp_async_wait<kStages - 2>();", "cp_async_wait<kStages - 1>();"))),
        ("a wait for every tile", without_ahead),
        ("a tile less in flight", from_reference(("cp_async_wait<kStages - 2>();", "cp_async_wait<kStages - 3>();"))),
        ("all", reference),
    ],
    "06_swizzle": [
        ("the starter", starter),
        ("half of the conflicts", with_rows_swapped),
        ("all", reference),
    ],
    "07_ldmatrix": [
        ("the starter", starter),
        ("Q alone", only("load_Q_fragments()")),
        ("Q and K", only("load_Q_fragments()", "load_K_fragments()")),
        ("all", reference),
    ],
    "08_bug_hunt": [
        ("the starter", starter),
        ("two faults", two_faults_of_bug_hunt),
        ("all", reference),
    ],
    "09_double_buffered_mma": [
        ("the starter", starter),
        ("one piece ahead too few",
         lambda a: re.sub(r"kAhead = (\d)", lambda m: f"kAhead = {int(m[1]) - 1}", a.reference_answer())),
        ("all", reference),
    ],
    "16_overlapped_softmax": [
        ("the starter", starter),
        ("every tile", every_tile),
        ("only the loop's bounds", only_the_loop_bounds),
        ("without what a warp can skip", with_ladders_softmax),
        ("all", reference),
    ],
}  # fmt: skip
