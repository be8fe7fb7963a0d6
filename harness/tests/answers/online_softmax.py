"""02, online softmax."""

from __future__ import annotations

import re

from .attention import scalar
from .edits import Assignment, Write, changed, from_reference, only, reference, renamed, replaced, starter

NAME = "02_online_softmax"

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


def body_of_02(body: str, short: bool = False) -> Write:
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


# The scores are kept in registers, a lane for each key of 32: for at most 1024 keys.
OFFLINE_IN_REGISTERS = """
  float kept[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    kept[i] = -INFINITY;
#pragma unroll 1
    for (int j = 0; j < 32 && i * 32 + j < args.seq_len_kv; ++j) {
      float k[kPerLane];
      load_row(k, K_gmem + (i * 32 + j) * args.K.row_stride, lane_id);
      float s = 0;
      for (int d = 0; d < kPerLane; ++d) s += q[d] * k[d];
      s = warp_sum(s) * args.softmax_scale;
      if (lane_id == j) kept[i] = s;
    }
    row_max = fmaxf(row_max, kept[i]);
  }
  for (int mask = 16; mask > 0; mask /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, mask));
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i * 32 >= args.seq_len_kv) break;
    const float p_of_lane = exp_approx(kept[i] - row_max);
    row_sum += p_of_lane;
#pragma unroll 1
    for (int j = 0; j < 32 && i * 32 + j < args.seq_len_kv; ++j) {
      float v[kPerLane];
      load_row(v, V_gmem + (i * 32 + j) * args.V.row_stride, lane_id);
      const float p = __shfl_sync(0xffffffff, p_of_lane, j);
      for (int d = 0; d < kPerLane; ++d) O_rmem[d] += p * v[d];
    }
  }
  row_sum = warp_sum(row_sum);
"""
# An upper bound of all scores in place of the running maximum: one more pass over K.
MAXIMUM_FIRST = """
  for (int key = 0; key < args.seq_len_kv; ++key) {
    float k[kPerLane];
    load_row(k, K_gmem + key * args.K.row_stride, lane_id);
    float s = 0;
    for (int i = 0; i < kPerLane; ++i) s += k[i] * k[i];
    row_max = fmaxf(row_max, warp_sum(s));
  }
  float own = 0;
  for (int i = 0; i < kPerLane; ++i) own += q[i] * q[i];
  row_max = sqrtf(warp_sum(own) * row_max) * args.softmax_scale;
  for (int key = 0; key < args.seq_len_kv; ++key) {
    float k[kPerLane], v[kPerLane];
    load_row(k, K_gmem + key * args.K.row_stride, lane_id);
    load_row(v, V_gmem + key * args.V.row_stride, lane_id);
    float s = 0;
    for (int i = 0; i < kPerLane; ++i) s += q[i] * k[i];
    const float p = exp_approx(warp_sum(s) * args.softmax_scale - row_max);
    row_sum += p;
    for (int i = 0; i < kPerLane; ++i) O_rmem[i] += p * v[i];
  }
"""


def key_by_key(assignment: Assignment) -> str:
    """Each key has a maximum and a factor of its own."""
    return re.sub(r"kBlockKV = \d;", "kBlockKV = 1;", assignment.reference_answer())


def rescaled_by_key(assignment: Assignment) -> str:
    """The maximum is that of the block, and the factor is computed again for every key."""
    return re.sub(
        r"(    // O \+= P V\.\n#pragma unroll\n.*?\{\n)", r"\1      row_sum *= exp_approx(row_max - new_max);\n",
        assignment.reference_answer(), count=1, flags=re.DOTALL,
    ).replace(
        "      const float p = exp_approx(score[j] - new_max);",
        "      const float p = exp_approx(score[j] - new_max) * exp_approx(new_max - row_max);",
    )  # fmt: skip


def element_by_element(assignment: Assignment) -> str:
    """A lane has the elements lane, lane + 32, …: one load of 16 bits for each."""
    text = assignment.reference_answer()
    for function, body in (
        ("load_row", "  for (int i = 0; i < kPerLane; ++i) x[i] = to_float(row_gmem[i * 32 + lane_id]);"),
        ("store_row", "  for (int i = 0; i < kPerLane; ++i) row_gmem[i * 32 + lane_id] = from_float<Element>(x[i]);"),
    ):
        begin = text.index("{\n", text.index(f"void {function}("))
        text = text[:begin] + "{\n#pragma unroll\n" + body + text[text.index("\n}\n", begin) :]
    return text


def of_one_lane_apart(assignment: Assignment) -> str:
    """A lane has adjacent elements, and loads them one by one."""
    text = assignment.reference_answer()
    for function, body in (
        (
            "load_row",
            "  for (int i = 0; i < kPerLane; ++i) x[i] = to_float(reinterpret_cast<const volatile "
            "Element*>(row_gmem)[lane_id * kPerLane + i]);",
        ),
        (
            "store_row",
            "  for (int i = 0; i < kPerLane; ++i) row_gmem[lane_id * kPerLane + i] = from_float<Element>(x[i]);",
        ),
    ):
        begin = text.index("{\n", text.index(f"void {function}("))
        body = body.replace(
            "to_float(reinterpret_cast<const volatile Element*>(row_gmem)[lane_id * kPerLane + i])",
            "to_float(one(row_gmem + lane_id * kPerLane + i))",
        )
        text = text[:begin] + "{\n#pragma unroll\n" + body + text[text.index("\n}\n", begin) :]
    return changed(text, ('#include "attention.h"\n', """#include "attention.h"

template <typename T>
__device__ T one(const T* x) {
  const unsigned short bits = *reinterpret_cast<const volatile unsigned short*>(x);
  return *reinterpret_cast<const T*>(&bits);
}
"""))  # fmt: skip


def by_one_warp(assignment: Assignment) -> str:
    """The CTA's first warp does the work of all, query by query."""
    return changed(
        assignment.reference_answer(),
        ("  const int query = blockIdx.x * Traits::kBlockQ + warp_id;\n",
         "  if (warp_id != 0) return;\n"
         "  for (int query = blockIdx.x * Traits::kBlockQ; query < (blockIdx.x + 1) * Traits::kBlockQ; ++query) {\n"),
        ("\n// What is launched.", "}\n\n// What is launched."),
        ("  store_row(args.O", "  store_row(args.O"),
    )  # fmt: skip


def with_prefetch(assignment: Assignment) -> str:
    """The rows of the next block are loaded while this one is used."""
    text = assignment.reference_answer()
    begin = text.index("    float k[kBlockKV][kPerLane], v[kBlockKV][kPerLane];")
    end = text.index("    // S = Q Kᵀ.")
    loop = text.rindex("  for (int key = 0;", 0, begin)
    return (
        text[:loop]
        + """float next_k[kBlockKV][kPerLane], next_v[kBlockKV][kPerLane];
  const auto fetch = [&](int key) {
#pragma unroll
    for (int j = 0; j < kBlockKV; ++j) {
      load_row(next_k[j], K_gmem + (key + j) * args.K.row_stride, lane_id);
      load_row(next_v[j], V_gmem + (key + j) * args.V.row_stride, lane_id);
    }
  };
  fetch(0);
"""
        + text[loop:begin]
        + """    float k[kBlockKV][kPerLane], v[kBlockKV][kPerLane];
#pragma unroll
    for (int i = 0; i < kBlockKV * kPerLane; ++i) {
      k[i / kPerLane][i % kPerLane] = next_k[i / kPerLane][i % kPerLane];
      v[i / kPerLane][i % kPerLane] = next_v[i / kPerLane][i % kPerLane];
    }
    if (key + kBlockKV < args.seq_len_kv) fetch(key + kBlockKV);
"""
        + text[end:]
    )


def with_sums_together(assignment: Assignment) -> str:
    """The keys' sums are exchanged together, step by step."""
    return changed(
        assignment.reference_answer(),
        ("      score[j] = warp_sum(score[j]) * args.softmax_scale;\n    }\n",
         """    }
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2)
#pragma unroll
      for (int j = 0; j < kBlockKV; ++j) score[j] += __shfl_xor_sync(0xffffffffu, score[j], mask);
#pragma unroll
    for (int j = 0; j < kBlockKV; ++j) score[j] *= args.softmax_scale;
"""),
    )  # fmt: skip


def in_powers_of_two(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("return exp2_approx(x * 1.44269504f);", "return exp2_approx(x);"),
        ("* args.softmax_scale;", "* (args.softmax_scale * 1.44269504f);"),
    )


def with_V_later(assignment: Assignment) -> str:
    """V's rows are loaded when they are needed."""
    return changed(
        assignment.reference_answer(),
        ("      load_row(v[j], V_gmem + (key + j) * args.V.row_stride, lane_id);\n", ""),
        ("      const float p = exp_approx(score[j] - new_max);\n",
         "      load_row(v[j], V_gmem + (key + j) * args.V.row_stride, lane_id);\n      const float p = "
         "exp_approx(score[j] - new_max);\n"),
    )  # fmt: skip


def with_the_factor_in_a_branch(assignment: Assignment) -> str:
    """Nothing is rescaled while the maximum stays."""
    return changed(
        assignment.reference_answer(),
        (
            "    const float rescale = exp_approx(row_max - new_max);",
            "    float rescale = 1;\n    if (new_max > row_max) rescale = exp_approx(row_max - new_max);",
        ),
    )


def with_q_scaled(assignment: Assignment) -> str:
    """softmax_scale is part of q."""
    return changed(
        assignment.reference_answer(), ("warp_sum(score[j]) * args.softmax_scale", "warp_sum(score[j])"),
        ("  float O_rmem[kPerLane] = {};", "  for (int i = 0; i < kPerLane; ++i) q[i] *= args.softmax_scale;\n  "
                                           "float O_rmem[kPerLane] = {};"),
    )  # fmt: skip


def with_moving_pointers(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("K_gmem + (key + j) * args.K.row_stride", "K_gmem + j * args.K.row_stride"),
        ("V_gmem + (key + j) * args.V.row_stride", "V_gmem + j * args.V.row_stride"),
        ("key += kBlockKV) {", "key += kBlockKV, K_gmem += kBlockKV * args.K.row_stride, V_gmem += kBlockKV * "
                               "args.V.row_stride) {"),
    )  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "offline": body_of_02(OFFLINE),
    "offline beyond 128 keys": body_of_02(OFFLINE, short=True),
    "scores in shared memory": body_of_02(OFFLINE_KEPT.format(
        where="shared memory", declare="__shared__ float all[16][520]; float* scores = all[threadIdx.x / 32];")),
    "scores in local memory": body_of_02(OFFLINE_KEPT.format(where="local memory", declare="float scores[520];")),
    "scores in registers": body_of_02(OFFLINE_IN_REGISTERS),
    "scores in registers beyond 128 keys": body_of_02(OFFLINE_IN_REGISTERS, short=True),
    "a bound in place of the maximum": body_of_02(MAXIMUM_FIRST),
    "no maximum": from_reference(("fmaxf(new_max, score[j])", "0.0f")),
    "the maximum of the first block": from_reference(("float new_max = row_max;",
        "float new_max = key == 0 ? row_max : row_max + 0.0f;"),
                                                     ("new_max = fmaxf(new_max, score[j]);",
                                                         "if (key == 0) new_max = fmaxf(new_max, score[j]);")),
    "element by element, key by key": lambda a: re.sub(r"kBlockKV = \d;", "kBlockKV = 1;", of_one_lane_apart(a)),
    "right for one length": lambda a: a.reference_answer().replace("key < args.seq_len_kv", "key < 64"),
}  # fmt: skip
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "rescales only if the maximum moves": from_reference(
        ("    row_sum *= rescale;\n", "    if (rescale != 1) row_sum *= rescale;\n")),
    "the factor in a branch": with_the_factor_in_a_branch,
    "maximum of pairs": from_reference(
        ("new_max = fmaxf(new_max, score[j]);", "new_max = score[j] > new_max ? score[j] : new_max;")),
    "shuffles downwards": lambda a: re.sub(
        r"(inline float warp_sum\(float x\) \{\n).*?\n\}", r"""\1  for (int step = 16; step > 0; step /= 2)
    x += __shfl_down_sync(0xffffffff, x, step);
  return __shfl_sync(0xffffffff, x, 0);
}""", a.reference_answer(), flags=re.DOTALL),
    "shuffles written out": lambda a: re.sub(
        r"(inline float warp_sum\(float x\) \{\n).*?\n\}", r"""\1  x += __shfl_xor_sync(~0u, x, 1);
  x += __shfl_xor_sync(~0u, x, 2);
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}""", a.reference_answer(), flags=re.DOTALL),
    "rows of the next block loaded early": with_prefetch,
    "sums exchanged together": with_sums_together,
    "powers of two": in_powers_of_two,
    "V when it is needed": with_V_later,
    "the scale in q": with_q_scaled,
    "moving pointers": with_moving_pointers,
    "a while loop": replaced((r"for \(int key = 0; key < args.seq_len_kv; key \+= kBlockKV\) \{",
        "int key = -kBlockKV;\n  while ((key += kBlockKV) < args.seq_len_kv) {")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("the sum of a warp", only("warp_sum()")),
    ("all but the loop", only("warp_sum()", "load_row() and store_row()")),
    ("no maximum", from_reference(("fmaxf(new_max, score[j])", "0.0f"))),
    ("rescaling for every key", rescaled_by_key),
    ("all", reference),
]
