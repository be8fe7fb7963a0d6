"""18, parts of the keys that are combined by their L."""

from __future__ import annotations

import re

from .edits import Assignment, Write, changed, from_reference, only, reference, renamed, starter

NAME = "18_split_kv"

KEYS = "const int first_key = part * part_keys, end_key = min(first_key + part_keys, end);"
ALL_KEYS = "const int first_key = 0, end_key = end;"
PART_KEYS = "const int part_keys = (iterations + num_parts - 1) / num_parts * Traits::kBlockKV;"
L_OF_A_PART = "*L_gmem = (row_max + log2f(row_sum)) * 0.693147181f;"
L_OF_A_ROW = "const float L = max_L + log2f(sum) * 0.693147181f;"
LARGEST = "float max_L = -FLT_MAX;"
WEIGHT = "const float weight = exp2_approx((L_parts[part] - max_L) * 1.44269504f);"
INVERSE_OF_A_PART = "const float inverse_sum = row_sum > 0 ? 1 / row_sum : 0;"
INVERSE_OF_A_ROW = "const float inverse_sum = sum > 0 ? 1 / sum : 0;"
CASTS = "*reinterpret_cast<const float4*>(O_gmem + part * Traits::kHeadDim)"


def combined_with(body: str, text: str) -> str:
    """Another body of combine()."""
    begin = text.index("\n  // The largest L: finite")
    return text[:begin] + body + text[text.index("\n  // Store O and L.") :]


def with_the_work_in_combine(assignment: Assignment) -> str:
    """The second kernel computes its row from K and V, and ignores the parts. It has one warp per row."""
    text = assignment.reference_answer()
    masked = "min(args.seq_len_kv, end)" if assignment.values["mask"] == "none" else "end"
    text = combined_with(f"""
  const int kv_head = head / (args.heads / kv_heads), end = END;
  float O_rmem[kColumns] = {{}}, m = -1e30f, sum = 0;
  for (int key = 0; key < {masked}; ++key) {{
    const Element* k = args.K.row<Element>(batch, kv_head, key);
    const Element* q = args.Q.row<Element>(batch, head, query);
    float s = 0;
    for (int d = lane_id; d < Traits::kHeadDim; d += 32) s += to_float(q[d]) * to_float(k[d]);
    for (int mask = 16; mask > 0; mask /= 2) s += __shfl_xor_sync(0xffffffff, s, mask);
    s *= args.softmax_scale * 1.44269504f;
    const float larger = fmaxf(m, s), rescale = exp2_approx(m - larger), p = exp2_approx(s - larger);
    m = larger;
    sum = sum * rescale + p;
    const Element* v = args.V.row<Element>(batch, kv_head, key) + col;
    for (int j = 0; j < kColumns; ++j) O_rmem[j] = O_rmem[j] * rescale + p * to_float(v[j]);
  }}
  for (int j = 0; j < kColumns; ++j) O_rmem[j] = sum > 0 ? O_rmem[j] / sum : 0;
  const float L = (m + log2f(sum)) * 0.693147181f;
""", text)  # fmt: skip
    end = re.search(r"const int end = (.*?);  //", text)[1]
    # combine() does not know the lengths, so the first kernel leaves them in the L of each row's first part.
    return changed(
        text,
        ("end = END;", "end = int(*L_parts);"),
        ("kv_head = head / (args.heads / kv_heads), end = int", "kv_heads = int(L_parts[1]), "
         "kv_head = head / (args.heads / kv_heads), end = int"),
        (L_OF_A_PART, f"*L_gmem = part == 0 ? float({end}) : float(kv_heads);"),
    )  # fmt: skip


def dead_code(assignment: Assignment) -> str:
    """The starter, with the reference answer in kernels that are never launched."""
    answer = assignment.reference_answer()
    body = answer[answer.index("namespace flash_ladder::submission {") : answer.index("// What is launched.")]
    return changed(
        assignment.starter(),
        ("namespace flash_ladder::submission {",
         body.replace("flash_ladder::submission", "flash_ladder::answer") + "}\n\n"
         "namespace flash_ladder::submission {"),
    )  # fmt: skip


def with_the_remainder_spread(assignment: Assignment) -> str:
    """The first parts have one iteration more than the others."""
    return changed(
        assignment.reference_answer(),
        (PART_KEYS, "const int each = iterations / num_parts, more = iterations % num_parts;"),
        (KEYS, "const int first_key = (part * each + min(part, more)) * Traits::kBlockKV;\n"
               "  const int end_key = min(first_key + (each + (part < more)) * Traits::kBlockKV, end);"),
    )  # fmt: skip


def with_iterations_dealt(assignment: Assignment) -> str:
    """Part p has iterations p, p + num_parts and so on."""
    return changed(
        assignment.reference_answer(),
        (PART_KEYS, ""),
        (KEYS, "const int first_key = part * Traits::kBlockKV, end_key = end;"),
        ("kv_row += Traits::kBlockKV) {", "kv_row += num_parts * Traits::kBlockKV) {"),
    )  # fmt: skip


def online(assignment: Assignment) -> str:
    """combine() in one pass: the maximum so far, and a rescaling for each part."""
    return combined_with("""
  float O_rmem[kColumns] = {}, max_L = -FLT_MAX, sum = 0;
  for (int part = 0; part < num_parts; ++part) {
    const float L_part = L_parts[part], larger = fmaxf(max_L, L_part);
    const float rescale = exp2_approx((max_L - larger) * 1.44269504f);
    const float weight = exp2_approx((L_part - larger) * 1.44269504f);
    max_L = larger;
    sum = sum * rescale + weight;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      O_rmem[j] = O_rmem[j] * rescale + weight * O_gmem[part * Traits::kHeadDim + j];
  }
#pragma unroll
  for (int j = 0; j < kColumns; ++j) O_rmem[j] = sum > 0 ? O_rmem[j] / sum : 0;
  const float L = max_L + logf(sum);
""", assignment.reference_answer())  # fmt: skip


def pair_by_pair(assignment: Assignment) -> str:
    """Two results become one, as a function."""
    text = combined_with("""
  float O_rmem[kColumns] = {}, L = -INFINITY;
  for (int part = 0; part < num_parts; ++part)
    merge<kColumns>(O_rmem, L, O_gmem + part * Traits::kHeadDim, L_parts[part]);
""", assignment.reference_answer())  # fmt: skip
    return changed(text, ("// Combines the parts of a row", """
template <int kColumns>
__device__ void merge(float (&O)[kColumns], float& L, const float* other_O, float other_L) {
  if (other_L == -INFINITY) return;
  const float larger = fmaxf(L, other_L);
  const float both = larger + logf(expf(L - larger) + expf(other_L - larger));
  const float own = expf(L - both), other = expf(other_L - both);
  for (int j = 0; j < kColumns; ++j) O[j] = own * O[j] + other * other_O[j];
  L = both;
}

// Combines the parts of a row"""))  # fmt: skip


def by_the_final_L(assignment: Assignment) -> str:
    """L of the row first, and then weights whose sum is 1."""
    return combined_with("""
  float largest = -FLT_MAX, sum = 0;
  for (int part = 0; part < num_parts; ++part) largest = fmaxf(largest, L_parts[part]);
  for (int part = 0; part < num_parts; ++part) sum += __expf(L_parts[part] - largest);
  const float L = sum == 0 ? -INFINITY : largest + __logf(sum);
  float O_rmem[kColumns] = {};
  for (int part = 0; part < num_parts && sum != 0; ++part) {
    const float weight = __expf(L_parts[part] - L);
    for (int j = 0; j < kColumns; ++j) O_rmem[j] += weight * O_gmem[part * Traits::kHeadDim + j];
  }
""", assignment.reference_answer())  # fmt: skip


def with_empty_parts_skipped(assignment: Assignment) -> str:
    """A part without keys stores only its L, and combine() does not read its O."""
    return changed(
        assignment.reference_answer(),
        (INVERSE_OF_A_PART, "if (first_key >= end_key) {\n    if (lane_id == 0) *L_gmem = -INFINITY;\n    return;\n"
                            "  }\n  const float inverse_sum = 1 / row_sum;"),
        (f"    const float4 O_part = {CASTS};\n",
         f"    if (L_parts[part] == -INFINITY) continue;\n    const float4 O_part = {CASTS};\n"),
    )  # fmt: skip


CHEATS: dict[str, Write] = {
    "the first part does everything": from_reference(
        (KEYS, "const int first_key = 0, end_key = part == 0 ? end : 0;")),
    "the last part does everything": from_reference(
        (KEYS, "const int first_key = 0, end_key = part == num_parts - 1 ? end : 0;")),
    "all keys in every part": from_reference(
        (KEYS, ALL_KEYS), (L_OF_A_ROW, L_OF_A_ROW.replace(";", " - logf(float(num_parts));"))),
    "combine does everything": with_the_work_in_combine,
    "the mean of the parts": from_reference((WEIGHT, "const float weight = L_parts[part] > -INFINITY ? 1 : 0;")),
    "another base in the parts": from_reference((L_OF_A_PART, "*L_gmem = row_max + log2f(row_sum);")),
    "no maximum": from_reference((LARGEST, "float max_L = 0;"),
                                 ("max_L = fmaxf(max_L, L_parts[part])", "max_L = max_L"),
                                 ("max_L = fmaxf(max_L, __shfl", "max_L = fminf(max_L, 0 * __shfl")),
    "without the last part": from_reference(
        ("int part = 0; part < num_parts; ++part", "int part = 0; part < num_parts - 1; ++part")),
    "the reference answer where it is never launched": dead_code,
    "keys beyond the sequence": from_reference((KEYS, KEYS.replace("min(first_key + part_keys, end)",
                                                                   "first_key + part_keys"))),
}  # fmt: skip
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "the remainder spread": with_the_remainder_spread,
    "iterations dealt in turn": with_iterations_dealt,
    "combined in one pass": online,
    "combined pair by pair": pair_by_pair,
    "L of the row first": by_the_final_L,
    "empty parts skipped": with_empty_parts_skipped,
    "the last part first": from_reference(
        (KEYS, KEYS.replace("part * part_keys", "(num_parts - 1 - part) * part_keys"))),
    "combined from the last part on": from_reference(
        ("for (int part = 0; part < num_parts; ++part) {", "for (int part = num_parts - 1; part >= 0; --part) {")),
    "the parts in powers of two": from_reference(
        (L_OF_A_PART, "*L_gmem = row_max + log2f(row_sum);"), (WEIGHT, WEIGHT.replace(" * 1.44269504f", "")),
        (L_OF_A_ROW, "const float L = (max_L + log2f(sum)) * 0.693147181f;")),
    "natural logarithms": from_reference(
        (L_OF_A_PART, "*L_gmem = row_max / 1.44269504f + logf(row_sum);"),
        (L_OF_A_ROW, "const float L = max_L + logf(sum);"),
        (WEIGHT, "const float weight = expf(L_parts[part] - max_L);")),
    "every lane looks for the largest": from_reference(
        ("int part = lane_id; part < num_parts; part += 32", "int part = 0; part < num_parts; ++part")),
    "divided by the sum": from_reference((INVERSE_OF_A_PART, "const float inverse_sum = 1 / fmaxf(row_sum, FLT_MIN);")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("only the keys", only("the keys of a part")),
    ("all keys in every part", CHEATS["all keys in every part"]),
    ("the first part does everything", CHEATS["the first part does everything"]),
    ("all but combine()", only("the keys of a part", "what a part stores")),
    ("two parts", from_reference((PART_KEYS, "const int part_keys = (iterations + 1) / 2 * Traits::kBlockKV;"))),
    ("NaN in rows that see no key", from_reference((INVERSE_OF_A_ROW, "const float inverse_sum = 1 / sum;"))),
    ("parts of any number of keys", from_reference(
        (PART_KEYS, "const int part_keys = (max(end, 0) + num_parts - 1) / num_parts;"))),
    ("all", reference),
]  # fmt: skip
