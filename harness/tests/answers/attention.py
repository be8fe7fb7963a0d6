"""Cheats and styles that several of the assignments on attention share."""

from __future__ import annotations

import re

from .edits import Assignment, Write, changed, renamed

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


def scalar(dummy: str = "", text: str = SCALAR, real: str = "float") -> Write:
    """Scalar arithmetic, with instructions whose result reaches O with the weight 0."""

    def write(assignment: Assignment) -> str:
        values = assignment.values
        window = values.get("window")
        head_dim = values["head_dim"]

        def element(tensor: str) -> str:
            first, second = ("d", "key") if values.get(f"{tensor}_columns") else ("key", "d")
            return f"args.{tensor}.row<Element>(batch, head, {first})[{second}]"

        filled = text.format(
            dummy=dummy.replace("HEAD_DIM", str(head_dim)), head_dim=head_dim, k=element("K"), v=element("V"),
            rows=128 if window else 16 if assignment.name.startswith("02") else 64, dummy_of_key="",
            masked=f"key > own || key < own - {window}" if window else "false",
        )  # fmt: skip
        if real == "double":
            filled = re.sub(r"\bfloat (o\[|s =|new_m =)", r"double \1", filled)
            filled = filled.replace("fmaxf(", "fmax(").replace("0.0f * nothing", "0.0 * nothing")
            filled = re.sub(r"to_float\(([^;]*?\])\) \*", r"double(to_float(\1)) *", filled)
        return filled

    return write


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


# ---- Styles ----


def with_a_while_loop(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("  for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {",
         "  int kv_row = -kBlockKV;\n  while ((kv_row += kBlockKV) < args.seq_len_kv) {"),
    )  # fmt: skip


def with_macros(assignment: Assignment) -> str:
    """Loops and conversions as macros."""
    text, count = re.subn(
        r"#pragma unroll\n( *)for \(int (\w+) = 0; \2 < ([^;]*); \+\+\2\)", r"\1EACH(\2, \3)",
        assignment.reference_answer(),
    )  # fmt: skip
    assert count
    return changed(
        text.replace("exp_approx(", "EXP("),
        ("inline float EXP(", "inline float exp_approx("),
        ('#include "convert.h"', '#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)\n'
         '#define EXP(x) exp2_approx((x)*1.44269504f)\n#include "convert.h"'),
    )  # fmt: skip


INLINE_PTX = r"""
namespace flash_ladder::submission {

template <typename Element>
__device__ __forceinline__ void tensor_core(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (sizeof(Element) == 2 && __is_same(Element, __half))
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
                   "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}
__device__ __forceinline__ void load4(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* p) {
  asm volatile("{ .reg .u64 p; .reg .u32 s; cvta.to.shared.u64 p, %4; cvt.u32.u64 s, p;\n"
               "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [s]; }"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(p) : "memory");
}
__device__ __forceinline__ void load4t(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* p) {
  asm volatile("{ .reg .u64 p; .reg .u32 s; cvta.to.shared.u64 p, %4; cvt.u32.u64 s, p;\n"
               "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [s]; }"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(p) : "memory");
}
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("{ .reg .u64 p; cvta.to.shared.u64 p, %0; cp.async.cg.shared.global.L2::128B [p], [%1], 16, 16; }"
               ::"l"(to), "l"(from) : "memory");
}

}  // namespace flash_ladder::submission
"""


def with_inline_ptx(assignment: Assignment) -> str:
    """Its own assembly instead of the helpers."""
    text = assignment.reference_answer()
    for helper, own in (
        ("mma_m16n8k16<", "tensor_core<"), ("ldmatrix_x4_trans(", "load4t("), ("ldmatrix_x4(", "load4("),
                        ("cp_async_16(", "copy16(")):  # fmt: skip
        text = text.replace(helper, own)
    return changed(text, ('#include "attention.h"\n', f'#include "attention.h"\n{INLINE_PTX}'))


def with_fragments_backwards(assignment: Assignment) -> str:
    """The loops over the columns of mmas run backwards."""
    text, count = re.subn(
        r"for \(int mma_n = 0; mma_n < (\w+) / 8; \+\+mma_n\)(\n#pragma unroll\n *for \(int mma_m[^\n]*\n *mma_m16)",
        r"for (int mma_n = \1 / 8 - 1; mma_n >= 0; --mma_n)\2",
        assignment.reference_answer(),
    )
    assert count == 2
    return text


def in_powers_of_two(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("return exp2_approx(x * 1.44269504f);", "return exp2_approx(x);"),
        ("*= args.softmax_scale;", "*= args.softmax_scale * 1.44269504f;"),
    )


def with_extra_warp_barriers(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("    // Online softmax.", "    __syncwarp();\n    // Online softmax."),
        ("    // P to 16 bits.", "    __syncwarp();\n    // P to 16 bits."),
    )


def with_extra_barriers(assignment: Assignment) -> str:
    """A barrier too many, where barriers are not the subject."""
    return changed(
        assignment.reference_answer(), ("    // Online softmax.", "    __syncthreads();\n    // Online softmax.")
    )


def with_keys_backwards(assignment: Assignment) -> str:
    """From the last tile to the first."""
    return changed(
        assignment.reference_answer(),
        ("for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {",
         "for (int kv_row = args.seq_len_kv - kBlockKV; kv_row >= 0; kv_row -= kBlockKV) {"),
    )  # fmt: skip


def with_shifts(assignment: Assignment) -> str:
    """Lanes by shifts and masks."""
    text = assignment.reference_answer()
    for old, new in (
        ("threadIdx.x % 32 / 4", "((threadIdx.x & 31u) >> 2)"), ("threadIdx.x % 4 * 2", "((threadIdx.x & 3u) << 1)"),
                     ("lane_id / 4", "(lane_id >> 2)"), ("lane_id % 4 * 2", "((lane_id & 3) << 1)"),
                     ("lane_id % 16", "(lane_id & 15)"), ("lane_id / 16 * 8", "((lane_id >> 4) << 3)"),
                     ("lane_id / 8 % 2 * 8", "(lane_id & 8)"), ("lane_id % 8", "(lane_id & 7)")):  # fmt: skip
        text = text.replace(old, new)
    return text


def with_the_sum_at_the_end(assignment: Assignment) -> str:
    """Each lane sums its own part of a row; the lanes of a group add theirs after the last tile."""
    return changed(
        assignment.reference_answer(), ("+ group_sum(tile_sum);", "+ tile_sum;"),
        ("1 / row_sum[mma_m][half]", "1 / group_sum(row_sum[mma_m][half])"),
    )  # fmt: skip


def with_a_rolled_product(assignment: Assignment) -> str:
    """The loop over head_dim in S = Q Kᵀ is not unrolled."""
    text, count = re.subn(r"#pragma unroll\n( *for \(int mma_k = 0; mma_k < kHeadDim / 16; \+\+mma_k\) \{\n *load)",
                          r"#pragma unroll 1\n\1", assignment.reference_answer())  # fmt: skip
    assert count
    return text


def with_O_stored_directly(assignment: Assignment) -> str:
    """Each lane stores its pairs of O to global memory, without the way through shared memory."""
    text = assignment.reference_answer()
    begin = text.index("  Element* O_smem = Q_smem;")
    end = text.index("}\n\n// What is launched.")
    return text[:begin] + """
  for (int mma_m = 0; mma_m < kMmaM; ++mma_m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = q_tile * kBlockQ + warp_row + mma_m * 16 + half * 8 + lane_id / 4;
      auto* O_gmem = args.O.row<Element>(batch, head, row) + lane_id % 4 * 2;
#pragma unroll
      for (int mma_n = 0; mma_n < kHeadDim / 8; ++mma_n)
        *reinterpret_cast<std::uint32_t*>(&O_gmem[mma_n * 8]) = pack<Element>(
            O_rmem[mma_m][mma_n][2 * half] / row_sum[mma_m][half], O_rmem[mma_m][mma_n][2 * half + 1] /
                row_sum[mma_m][half]);
    }
""" + text[end:]  # fmt: skip


def with_softmax_by_rows(assignment: Assignment) -> str:
    """Online softmax as a function template that takes an accumulator and returns its factor."""
    text = assignment.reference_answer()
    begin = text.index("    float rescale[kMmaM][2];")
    end = text.index("    // P to 16 bits.")
    text = text[:begin] + """
#pragma unroll
    for (int mma_m = 0; mma_m < kMmaM; ++mma_m) softmax_step(S_rmem[mma_m], O_rmem[mma_m], row_max[mma_m],
        row_sum[mma_m], args.softmax_scale);

""" + text[end:]  # fmt: skip
    return changed(text, ("template <typename Traits>\n__global__", """
template <int kKeyTiles, int kColumnTiles>
__device__ __forceinline__ void softmax_step(float (&s)[kKeyTiles][4], float (&o)[kColumnTiles][4], float (&m)[2],
    float (&l)[2], float scale) {
  const auto each = [&](auto f) {
#pragma unroll
    for (int at = 0; at < kKeyTiles * 4; ++at) f(s[at / 4][at % 4], at % 4 / 2);
  };
  float top[2] = {m[0], m[1]}, factor[2], sum[2] = {0, 0};
  each([&](float& x, int half) { x *= scale, top[half] = fmaxf(top[half], x); });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = group_max(top[half]);
    factor[half] = exp_approx(m[half] - top[half]);
    m[half] = top[half];
  }
  each([&](float& x, int half) { x = exp_approx(x - m[half]), sum[half] += x; });
#pragma unroll
  for (int half = 0; half < 2; ++half) l[half] = l[half] * factor[half] + group_sum(sum[half]);
#pragma unroll
  for (int at = 0; at < kColumnTiles * 4; ++at) o[at / 4][at % 4] *= factor[at % 4 / 2];
}

template <typename Traits>
__global__"""))  # fmt: skip


STYLES: dict[str, Write] = {
    "other comments": renamed,
    "a while loop": with_a_while_loop,
    "macros": with_macros,
    "inline PTX": with_inline_ptx,
    "fragments backwards": with_fragments_backwards,
    "powers of two": in_powers_of_two,
    "barriers of warps": with_extra_warp_barriers,
    "shifts and masks": with_shifts,
    "the sum at the end": with_the_sum_at_the_end,
    "a rolled product": with_a_rolled_product,
    "the softmax as a function": with_softmax_by_rows,
}


# ---- Cheats that keep some of the work ----


def element_at(assignment: Assignment, tensor: str, row: str, col: str) -> str:
    """An element of a tile in shared memory, with the starter's own function for its place."""
    text = assignment.reference_answer()
    if assignment.values.get(f"{tensor}_columns"):
        return f"{tensor}_smem[smem_offset<Traits::kBlockKV>({col}, {row})]"
    width = "<Traits>" if "smem_offset<Traits>(" in text else "<Traits::kHeadDim>"
    return f"{tensor}_smem[smem_offset{width}({row}, {col})]"


def scores_by_hand(when: str = "true") -> Write:
    """S = Q Kᵀ in scalar arithmetic from shared memory, in the tiles for which the condition holds."""

    def write(assignment: Assignment) -> str:
        text = assignment.reference_answer()
        begin = text.index("#pragma unroll\n", text.index("std::uint32_t K_rmem["))
        end = text.index("\n\n    // Online softmax")
        product = text[begin:end]
        q, k = element_at(assignment, "Q", "row", "d"), element_at(assignment, "K", "key", "d")
        if "K_stage" in text:
            k = k.replace("K_smem", "K_stage")
        return text[:begin] + f"""
    if ({when}) {{
      for (int mma_n = 0; mma_n < kBlockKV / 8; ++mma_n)
        for (int i = 0; i < 4; ++i) {{
          const int row = warp_row + i / 2 * 8 + lane_id / 4, key = mma_n * 8 + lane_id % 4 * 2 + i % 2;
          float sum = 0;
          for (int d = 0; d < kHeadDim; ++d) sum += to_float({q}) * to_float({k});
          S_rmem[0][mma_n][i] = sum;
        }}
    }} else {{
{product}
    }}""" + text[end:]  # fmt: skip

    return write


def dead_code(assignment: Assignment) -> str:
    """The starter, with the reference answer's kernel in a branch that is never taken."""
    answer = assignment.reference_answer()
    body = answer[answer.index("namespace flash_ladder::submission {") : answer.index("// What is launched.")]
    body = re.sub(r"__global__ void (__launch_bounds__\(.*?\) )?flash_attention", "__device__ void answer", body)
    body = body.replace("flash_ladder::submission", "flash_ladder::answer") + "}\n\n"
    starter = assignment.starter()
    begin = starter.index("{\n", starter.index("flash_attention(AttentionArgs args)")) + 2
    starter = (
        starter[:begin]
        + "  if (args.batch < 0) answer::answer<answer::Traits<typename Traits::Element>>(args);\n"
        + starter[begin:]
    )
    return changed(starter, ("namespace flash_ladder::submission {", body + "namespace flash_ladder::submission {"))


def of_another_size(assignment: Assignment) -> str:
    """Right only for as many keys as the course's visible cases have."""
    cases = [case["problem"]["seq_len_kv"] for case in assignment.data["case"]]
    sizes = [size for case in cases for size in (case if isinstance(case, list) else [case])]
    return assignment.reference_answer().replace("kv_row < args.seq_len_kv", f"kv_row < {min(sizes)}")


SHARED_SCALAR = changed(
    SCALAR,
    ("    for (int key = 0; key < args.seq_len_kv; ++key) {{\n",
     """    for (int key = 0; key < args.seq_len_kv; ++key) {{
      Element* K_row = reinterpret_cast<Element*>(smem);
      Element* V_row = K_row + {head_dim};
      __syncthreads();
      if (threadIdx.x < {head_dim}) {{
        const int d = threadIdx.x;
        K_row[d] = {k};
        V_row[d] = {v};
      }}
      __syncthreads();
      {dummy_of_key}
"""),
    ("to_float({k})", "to_float(K_row[d])"), ("to_float({v})", "to_float(V_row[d])"),
    ("  for (int row = blockIdx.x * {rows} + threadIdx.x; row < (blockIdx.x + 1) * {rows}; row += blockDim.x) {{",
     "  {{\n    const int row = blockIdx.x * {rows} + threadIdx.x % {rows};"),
)  # fmt: skip


# ldmatrix in plain loads: lane 8 i + j of a matrix has the address of its row j.
FAKE_LDMATRIX = """
namespace flash_ladder::submission {{

__device__ inline std::uint32_t nothing_of(std::uint32_t x) {{
  std::uint32_t zero;
  asm volatile("mov.u32 %0, 0;" : "=r"(zero));
  return x & zero;
}}
__device__ inline std::uint32_t plain(const void* row, int matrix, bool trans) {{
  const int lane = threadIdx.x % 32;
  const auto address = reinterpret_cast<unsigned long long>(row);
  const auto at = [&](int r) {{ return __shfl_sync(0xffffffff, address, 8 * matrix + r); }};
  if (!trans) return *reinterpret_cast<const std::uint32_t*>(at(lane / 4) + lane % 4 * 4);
  const std::uint32_t low = *reinterpret_cast<const std::uint16_t*>(at(lane % 4 * 2) + lane / 4 * 2);
  const std::uint32_t high = *reinterpret_cast<const std::uint16_t*>(at(lane % 4 * 2 + 1) + lane / 4 * 2);
  return high << 16 | low;
}}
__device__ inline void other_ldmatrix(bool trans, std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
    std::uint32_t& d, const void* row) {{
  std::uint32_t r[4] = {{}};
  {first}
  a = plain(row, 0, trans), b = plain(row, 1, trans), c = plain(row, 2, trans), d = plain(row, 3, trans);
  a ^= nothing_of(r[0]), b ^= nothing_of(r[1]), c ^= nothing_of(r[2]), d ^= nothing_of(r[3]);
}}

}}  // namespace flash_ladder::submission
"""
REAL_LDMATRIX = """if (trans) ldmatrix_x4_trans(r[0], r[1], r[2], r[3], row);
  else ldmatrix_x4(r[0], r[1], r[2], r[3], row);"""


def without_ldmatrix(also: bool = False, only_in: str = "") -> Write:
    """Fragments from plain loads; `also`: beside ldmatrix, without effect; `only_in`: in the function for this "
    "tensor."""

    def write(assignment: Assignment) -> str:
        text = assignment.reference_answer()
        begin = text.index(f"void load_{only_in}_fragments") if only_in else text.index("// A = Q")
        end = text.index("\n}\n", begin) if only_in else text.index("// exp(x)")
        part = (
            text[begin:end]
            .replace("ldmatrix_x4_trans(", "other_ldmatrix(true, ")
            .replace("ldmatrix_x4(", "other_ldmatrix(false, ")
        )
        include = '#include "attention.h"\n'
        fake = FAKE_LDMATRIX.format(first=REAL_LDMATRIX if also else "")
        return changed(text[:begin] + part + text[end:], (include, include + fake))

    return write


def from_global_memory(assignment: Assignment) -> str:
    """Fragments of K and V straight from global memory, where there are no banks."""
    text = assignment.reference_answer()
    for tensor in "KV":
        begin = text.index(f"void load_{tensor}_fragments")
        end = text.index("\n}\n", begin)
        part = text[begin:end].replace("int mma_k)", "int mma_k, std::int64_t stride)")
        part = re.sub(r"smem_offset<[\w:]+>\(([^,]*), ([^)]*)\)", r"(\1) * stride + (\2)", part)
        at = "kv_row" if assignment.values.get(f"{tensor}_columns") else f"kv_row * args.{tensor}.row_stride"
        text = text[:begin] + part + text[end:]
        text = changed(text, (f"({tensor}_rmem, {tensor}_smem, mma_k)",
                              f"({tensor}_rmem, {tensor}_gmem + {at}, mma_k, args.{tensor}.row_stride)"))  # fmt: skip
    return text
