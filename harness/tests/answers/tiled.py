"""03, tiles and registers."""

from __future__ import annotations

import re

from .attention import ONE_SHARED_LOAD, SHARED_SCALAR, dead_code, scalar
from .edits import Assignment, Write, changed, from_reference, only, reference, renamed, replaced, starter

NAME = "03_tiled"


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


def quads_of_which_one_counts(assignment: Assignment) -> str:
    """Four floats per load, of which one is used."""
    return changed(
        one_float_at_a_time(assignment),
        ("for (int i = 0; i < n; ++i) to[i] = reinterpret_cast<const volatile float*>(from)[i];",
         "for (int i = 0; i < n; ++i) {\n    float quad[4];\n    const float* first = from + i / 4 * 4;\n"
         "    asm volatile(\"ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\" : \"=f\"(quad[0]), \"=f\"(quad[1]), "
         "\"=f\"(quad[2]), \"=f\"(quad[3]) : \"r\"(smem_address(first)));\n"
         "    to[i] = quad[i % 4];\n  }"),
    )  # fmt: skip


def one_float_in(product: str) -> Write:
    """Single floats in one of the products."""

    def write(assignment: Assignment) -> str:
        text = one_float_at_a_time(assignment)
        begin = text.index("    // S = Q" if product == "O" else "    // O += P V")
        end = text.index("    // Online softmax") if product == "O" else text.index("  // Normalise and store O.")
        return text[:begin] + text[begin:end].replace("load_one_by_one(", "load_smem(") + text[end:]

    return write


def single_stores_of_P(assignment: Assignment) -> str:
    text = assignment.reference_answer()
    return re.sub(
        r"\*reinterpret_cast<float4\*>\(&P_smem\[(.*?)\]\) =\s*make_float4\((.*?)\);",
        lambda m: "{ volatile float* to = &P_smem[" + m[1] + "]; "
        + " ".join(f"to[{i}] = {x};" for i, x in enumerate(m[2].split(", "))) + " }",
        text, count=1, flags=re.DOTALL,
    )  # fmt: skip


def Q_from_global_memory(assignment: Assignment) -> str:
    """Q is read from global memory in every tile, not from shared memory."""
    rows = assignment.values["Q_rows"]
    pattern = r"load_smem\(q\[i\], &Q_smem\[.*?\]\);"
    return replaced(
        (
            pattern,
            "for (int j = 0; j < 4; ++j) q[i][j] = to_float(Q_gmem["
            + (
                "(thread_row * kRows + i) * args.Q.row_stride + d + j"
                if rows
                else "(thread_row * kRows + j) * args.Q.row_stride + d + i"
            )
            + "]);",
        )
    )(assignment)


def K_from_global_memory(assignment: Assignment) -> str:
    return replaced((r"load_smem\(k, &K_smem\[.*?\]\);",
                     "for (int j = 0; j < 4; ++j) k[j] = to_float(K_gmem[(kv_row + thread_col * kKeys + j) * "
                     "args.K.row_stride + d + step]);"))(assignment)  # fmt: skip


def V_from_global_memory(assignment: Assignment) -> str:
    return replaced((r"load_smem\(v\[quad\], &V_smem\[.*?\]\);",
                     "for (int j = 0; j < 4; ++j) v[quad][j] = to_float(V_gmem[(kv_row + key + step) * "
                     "args.V.row_stride + quad * (kHeadDim / kQuads) + thread_col * 4 + j]);"))(assignment)  # fmt: skip


def P_by_shuffles(assignment: Assignment) -> str:
    """P is not exchanged through shared memory: every element comes from the lane that has it."""
    text = assignment.reference_answer()
    begin = text.index("#pragma unroll", text.index("done with the previous iteration's P"))
    text = text[:begin] + text[text.index("    __syncwarp();  // P of this warp", begin) :]
    begin = text.index("#pragma unroll 1\n", text.index("    // O += P V, as"))
    text = text[:begin] + "#pragma unroll\n" + text[begin + len("#pragma unroll 1\n") :]
    begin = text.index("      for (int i = 0; i < 4; ++i)\n        load_smem(p[i], &P_smem")
    end = text.index(";\n", begin) + 2
    by_rows = assignment.values["P_rows"]
    return text[:begin] + f"""      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
          p[i][j] = __shfl_sync(0xffffffff, S_rmem[{"i" if by_rows else "j"}][{"j" if by_rows else "i"}],
              threadIdx.x % 32 / 8 * 8 + key / 4);
""" + text[end:]  # fmt: skip


def half_of_the_rows(assignment: Assignment) -> str:
    """Sub-tiles of 4 × 4, of which the threads compute a row at a time and read K and V again for each."""
    text = changed(
        assignment.reference_answer(),
        (
            "    float S_rmem[kRows][kKeys] = {};\n",
            "    float S_rmem[kRows][kKeys] = {};\n#pragma unroll\n    for (int only = 0; only < kRows; ++only)\n",
        ),
    )
    return changed(
        text,
        ("for (int row = 0; row < kRows; ++row)\n#pragma unroll\n          for (int key = 0; key < kKeys; ++key) "
         "S_rmem",
         "for (int row = only; row < only + 1; ++row)\n#pragma unroll\n          for (int key = 0; key < kKeys; "
         "++key) S_rmem"),
    )  # fmt: skip


def first_warp_alone(assignment: Assignment) -> str:
    """Four floats at a time in the first warp, one in the others."""
    return changed(
        one_float_at_a_time(assignment),
        ("for (int i = 0; i < n; ++i) to[i] = ", "for (int i = 0; i < n; ++i) to[i] = "),
        ("    // S = Q Kᵀ, as", "    const auto load_one_by_one = [&](auto& to, const float* from) {\n"
         "      if (threadIdx.x < 32) load_smem(to, from);\n      else submission::load_one_by_one(to, from);\n    "
         "};\n    // S = Q Kᵀ, as"),
    )  # fmt: skip


def with_float4(assignment: Assignment) -> str:
    """float4 instead of load_smem()."""
    return re.sub(
        r"load_smem\((\w+(?:\[\w+\])?), &(\w+)\[([^;]*)\]\);",
        r"*reinterpret_cast<float4*>(&\1[0]) = *reinterpret_cast<const float4*>(\2 + (\3));",
        assignment.reference_answer(),
    ).replace("float q[", "alignas(16) float q[").replace("float k[kKeys]", "alignas(16) float k[kKeys]").replace(
        "float p[4][4]", "alignas(16) float p[4][4]").replace("float v[kQuads][4]",
            "alignas(16) float v[kQuads][4]")  # fmt: skip


def with_inline_ptx(assignment: Assignment) -> str:
    return changed(
        re.sub(r"(?<!void )load_smem\(", "four(", assignment.reference_answer()),
        ('#include "attention.h"\n', """#include "attention.h"

__device__ __forceinline__ void four(float (&x)[4], const float* from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(flash_ladder::smem_address(from)) : "memory");
}
"""))  # fmt: skip


def with_outer_products(assignment: Assignment) -> str:
    """An outer product as a function template."""
    text, count = re.subn(
        r"#pragma unroll\n( *)for \(int row = 0; row < kRows; \+\+row\)\n#pragma unroll\n *for \(int key = 0; key "
        r"< kKeys; \+\+key\) S_rmem\[row\]\[key\] \+= q\[(\w+)\]\[(\w+)\] \* k\[key\];",
        r"\1outer(S_rmem, [&](int row) { return q[\2][\3]; }, k);", assignment.reference_answer(),
    )  # fmt: skip
    assert count == 1
    return changed(text, ("template <typename Traits>\n__global__", """template <int rows, int cols, typename A>
__device__ __forceinline__ void outer(float (&d)[rows][cols], A a, const float (&b)[cols]) {
#pragma unroll
  for (int i = 0; i < rows * cols; ++i) d[i / cols][i % cols] = fmaf(a(i / cols), b[i % cols], d[i / cols][i % cols]);
}

template <typename Traits>
__global__"""))  # fmt: skip


def with_macros(assignment: Assignment) -> str:
    text = re.sub(
        r"#pragma unroll\n( *)for \(int (\w+) = 0; \2 < ([^;]*); \+\+\2\)",
        r"\1EACH(\2, \3)",
        assignment.reference_answer(),
    )
    return changed(
        text,
        (
            '#include "convert.h"',
            '#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)\n#include "convert.h"',
        ),
    )


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with a shared load": scalar(ONE_SHARED_LOAD),
    "a scalar kernel with rows in shared memory": scalar(text=SHARED_SCALAR),
    "one float at a time": one_float_at_a_time,
    "one float at a time in three warps": first_warp_alone,
    "one float of each four": quads_of_which_one_counts,
    "K from global memory": K_from_global_memory,
    "V from global memory": V_from_global_memory,
    "Q from global memory": Q_from_global_memory,
    "the answer in a branch that is never taken": dead_code,
    "right for one length": lambda a: a.reference_answer().replace("kv_row < args.seq_len_kv", "kv_row < 32"),
}
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "unrolled further": from_reference(("#pragma unroll 2\n", "#pragma unroll 4\n")),
    "not unrolled": from_reference(("#pragma unroll 2\n", "#pragma unroll 1\n")),
    "float4": with_float4,
    "inline PTX": with_inline_ptx,
    "a function for outer products": with_outer_products,
    "macros": with_macros,
    "a while loop": from_reference(
        ("  for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {",
         "  int kv_row = -kBlockKV;\n  while ((kv_row += kBlockKV) < args.seq_len_kv) {")),
    "keys backwards": from_reference(
        ("for (int kv_row = 0; kv_row < args.seq_len_kv; kv_row += kBlockKV) {",
         "for (int kv_row = args.seq_len_kv - kBlockKV; kv_row >= 0; kv_row -= kBlockKV) {")),
    "steps backwards": replaced((r"for \(int step = 0; step < (\d); \+\+step\)",
        r"for (int step = \1 - 1; step >= 0; --step)")),
    "powers of two": from_reference(("return exp2_approx(x * 1.44269504f);", "return exp2_approx(x);"),
                                    ("*= args.softmax_scale;", "*= args.softmax_scale * 1.44269504f;")),
    "extra barriers": from_reference(("    // Online softmax.", "    __syncthreads();\n    // Online softmax.")),
    "the sum at the end": from_reference(("+ row_threads_sum(tile_sum);", "+ tile_sum;"),
                                         ("1 / row_sum[row]", "1 / row_threads_sum(row_sum[row])")),
    "P by shuffles": P_by_shuffles,
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("S alone", only("S = Q Kᵀ")),
    ("S and the store of P", only("S = Q Kᵀ", "the store of P")),
    ("one float at a time", one_float_at_a_time),
    ("one float at a time in O", one_float_in("O")),
    ("K again for each row of S", half_of_the_rows),
    ("single stores of P", single_stores_of_P),
    ("all", reference),
]
