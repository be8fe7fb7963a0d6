"""19, gradients with a mask."""

from __future__ import annotations

from .edits import Assignment, Write, changed, from_reference, only, reference, renamed, starter

NAME = "19_gradients"

D_LOOP = "for (int d = 0; d < Traits::kHeadDim; ++d) sum += to_float(dO_gmem[d]) * to_float(O_gmem[d]);"
LOOP = "for (std::int64_t q_row = first_query / kBlockQ * kBlockQ; q_row < end_query; q_row += kBlockQ) {"
EVERY_TILE = (LOOP, "for (std::int64_t q_row = 0; q_row < args.seq_len; q_row += kBlockQ) {")
P = "const float p = is_hidden ? 0 : exp_approx(S_rmem[i][key] * args.softmax_scale - L);"
DS = "dS_smem[at] = p * (dP_rmem[i][key] - D) * args.softmax_scale;"
DV = "    multiply_transposed<Traits>(dV_rmem, P_smem, &dO_smem[thread_col * 4]);\n"
DK = "    multiply_transposed<Traits>(dK_rmem, dS_smem, &Q_smem[thread_col * 4]);\n"


def scalar(assignment: Assignment) -> str:
    """A thread computes elements of the gradients from global memory, score by score."""
    text = assignment.reference_answer()
    begin = text.index("  // Copy K and V.\n")
    end = text.index("\n// Converts the sums of dQ")
    hides = assignment.values["hides"].replace("key_row", "key")
    text = text[:begin] + """
  const int d = threadIdx.x;
  for (int key = kv_row; key < kv_row + kBlockKV; ++key) {
    const Element* k = args.K.row<Element>(batch, head, key);
    const Element* v = args.V.row<Element>(batch, head, key);
    float dk = 0, dv = 0;
    for (int query = 0; query < args.seq_len; ++query) {
      const int own = query + shift;
      if (HIDES) continue;
      const Element* q = args.Q.row<Element>(batch, head, query);
      const Element* g = gradients.dO.row<Element>(batch, head, query);
      float s = 0, dp = 0;
      for (int i = 0; i < kHeadDim; ++i) s += to_float(q[i]) * to_float(k[i]), dp += to_float(g[i]) * to_float(v[i]);
      const float p = exp_approx(s * args.softmax_scale - L_gmem[query]);
      const float ds = p * (dp - D_gmem[query]) * args.softmax_scale;
      dv += p * to_float(g[d]), dk += ds * to_float(q[d]);
      atomicAdd(row_of_dQ<Traits>(args, batch, head, query) + d, ds * to_float(k[d]));
    }
    gradients.dK.row<Element>(batch, head, key)[d] = from_float<Element>(dk);
    gradients.dV.row<Element>(batch, head, key)[d] = from_float<Element>(dv);
  }
}
""".replace("HIDES", hides) + text[end:]  # fmt: skip
    tiles = [(f"  float* {tile}_smem = ", f"  // float* {tile}_smem = ") for tile in ("K", "V", "Q", "dO", "P", "dS")]
    return changed(text, ("  extern __shared__", "  // extern __shared__"), *tiles)


def with_an_addition_for_each_key(assignment: Assignment) -> str:
    """dQ without a sum in registers."""
    text = assignment.reference_answer()
    begin = text.index("    float dQ_rmem[kRows]")
    end = text.index("  }\n\n  // Store dK and dV.")
    return text[:begin] + """
    for (int key = 0; key < kBlockKV; ++key)
      for (int i = 0; i < kHeadDim / kThreadCols; ++i)
        for (int query = 0; query < kRows; ++query)
          atomicAdd(row_of_dQ<Traits>(args, batch, head, q_row + row + query) + i * kThreadCols + thread_col,
                    dS_smem[(row + query) * kBlockKV + key] * K_smem[key * kRowStride + i * kThreadCols + thread_col]);
""" + text[end:]  # fmt: skip


def with_two_halves(assignment: Assignment) -> str:
    """dQ is added twice for each tile, with half of the keys each."""
    text = assignment.reference_answer()
    begin = text.index("    float dQ_rmem[kRows]")
    end = text.index("  }\n\n  // Store dK and dV.")
    body = changed(text[begin:end], ("for (int key = 0; key < kBlockKV; ++key)",
                                     "for (int key = half; key < half + kBlockKV / 2; ++key)"))  # fmt: skip
    loop = "    for (int half = 0; half < kBlockKV; half += kBlockKV / 2) {\n"
    return text[:begin] + f"{loop}{body}    }}\n" + text[end:]


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


def with_D_by_a_warp(assignment: Assignment) -> str:
    """The lanes of a warp share each of its 32 rows."""
    text = assignment.reference_answer()
    begin = text.index("  if (query < args.seq_len) {\n")
    end = text.index("  float* sums_gmem = row_of_dQ")
    return text[:begin] + """
  for (int lane = 0; lane < 32 && query - threadIdx.x % 32 + lane < args.seq_len; ++lane) {
    const int of_warp = query - threadIdx.x % 32 + lane;
    const Element* g = gradients.dO.row<Element>(batch, head, of_warp);
    const Element* o = args.O.row<Element>(batch, head, of_warp);
    float sum = 0;
    for (int d = threadIdx.x % 32; d < Traits::kHeadDim; d += 32) sum += to_float(g[d]) * to_float(o[d]);
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffff, sum, mask);
    if (threadIdx.x % 32 == 0) row_of_D(args, batch, head)[of_warp] = sum;
  }
""" + text[end:]  # fmt: skip


def with_the_scale_at_the_end(assignment: Assignment) -> str:
    """As in B02: dK when it is stored, dQ when it is converted."""
    return changed(
        assignment.reference_answer(),
        (" * args.softmax_scale;\n      }\n    }\n", ";\n      }\n    }\n"),
        ("pack<Element>(dK[0], dK[1]), pack<Element>(dK[2], dK[3])",
         "pack<Element>(dK[0] * args.softmax_scale, dK[1] * args.softmax_scale), "
         "pack<Element>(dK[2] * args.softmax_scale, dK[3] * args.softmax_scale)"),
        ("from_float<Element>(sums_gmem[d])", "from_float<Element>(sums_gmem[d] * args.softmax_scale)"),
    )  # fmt: skip


def with_the_columns_outside(assignment: Assignment) -> str:
    """dQ column by column, each with its loop over the keys."""
    text = assignment.reference_answer()
    begin = text.index("    float dQ_rmem[kRows]")
    end = text.index("  }\n\n  // Store dK and dV.")
    return text[:begin] + """
#pragma unroll 1
    for (int i = thread_col; i < kHeadDim; i += kThreadCols) {
      float sum[kRows] = {};
#pragma unroll 8
      for (int key = 0; key < kBlockKV; ++key)
        for (int query = 0; query < kRows; ++query)
          sum[query] += dS_smem[(row + query) * kBlockKV + key] * K_smem[key * kRowStride + i];
      for (int query = 0; query < kRows; ++query)
        atomicAdd(row_of_dQ<Traits>(args, batch, head, q_row + row + query) + i, sum[query]);
    }
""" + text[end:]  # fmt: skip


def with_products_in_one_loop(assignment: Assignment) -> str:
    """dV and dK together, without multiply_transposed()."""
    return changed(
        assignment.reference_answer(),
        (DV + DK, """
#pragma unroll 4
    for (int query = 0; query < kBlockQ; ++query) {
      float p[kRows], ds[kRows];
      load_4(p, &P_smem[query * kBlockKV + row]);
      load_4(ds, &dS_smem[query * kBlockKV + row]);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        float g[4], q[4];
        load_4(g, &dO_smem[query * kRowStride + thread_col * 4 + quad * kHeadDim / kQuads]);
        load_4(q, &Q_smem[query * kRowStride + thread_col * 4 + quad * kHeadDim / kQuads]);
#pragma unroll
        for (int i = 0; i < kRows * 4; ++i) {
          dV_rmem[i / 4][quad][i % 4] += p[i / 4] * g[i % 4];
          dK_rmem[i / 4][quad][i % 4] += ds[i / 4] * q[i % 4];
        }
      }
    }
"""))  # fmt: skip


WITHOUT_D = from_reference((D_LOOP, ""))

CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar,
    "without a mask": from_reference(("is_hidden ? 0 : ", "")),
    "without a mask, every tile": from_reference(("is_hidden ? 0 : ", ""), EVERY_TILE),
    "without D": WITHOUT_D,
    "dP in place of dS": from_reference((DS, "dS_smem[at] = dP_rmem[i][key] * args.softmax_scale;")),
    "P and dS exchanged": from_reference((DV + DK, DV.replace("P_smem", "dS_smem") + DK.replace("dS_smem", "P_smem"))),
    "without the scale": from_reference((DS, DS.replace(" * args.softmax_scale", ""))),
    "the scale twice": from_reference((DS, DS.replace(" * args", " * args.softmax_scale * args"))),
    "no sum over tiles": from_reference((DV, "    for (auto& x : dV_rmem) for (auto& y : x) for (float& z : y) z = 0;\n"
                                         + DV)),
    "the reference answer where it is never launched": dead_code,
}  # fmt: skip
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "D by a warp": with_D_by_a_warp,
    "the scale at the end": with_the_scale_at_the_end,
    "dQ column by column": with_the_columns_outside,
    "dV and dK in one loop": with_products_in_one_loop,
    "dK before dV": from_reference((DV + DK, DK + DV)),
    "L and the scale in powers of two": from_reference(
        (P, "const float p = is_hidden ? 0 : exp2_approx((S_rmem[i][key] * args.softmax_scale - L) * 1.44269504f);")),
    "an exact exponential": from_reference((P, P.replace("exp_approx", "expf"))),
    "the mask as an if": from_reference(
        (P, "float p = 0;\n        if (!is_hidden) p = exp_approx(S_rmem[i][key] * args.softmax_scale - L);")),
    "the tiles backwards": from_reference(
        (LOOP, "for (std::int64_t q_row = (end_query - 1 + kBlockQ) / kBlockQ * kBlockQ - kBlockQ; "
               "q_row >= first_query / kBlockQ * kBlockQ; q_row -= kBlockQ) {")),
    "hidden tiles left in the loop": from_reference(
        (LOOP, "for (std::int64_t q_row = 0; q_row < args.seq_len; q_row += kBlockQ) {\n"
               "    if (q_row + kBlockQ <= first_query || q_row >= end_query) continue;")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("only D", only("D")),
    ("all but dQ", only("D", "the tiles of the loop", "P and dS", "dV and dK")),
    ("without D", WITHOUT_D),
    ("an addition for each key, every tile", lambda a: changed(with_an_addition_for_each_key(a), EVERY_TILE)),
    ("P multiplied by 0", from_reference((P, P.replace("is_hidden ? 0 : exp", "(is_hidden ? 0.0f : 1.0f) * exp")))),
    ("every tile", from_reference(EVERY_TILE)),
    ("an addition for each key", with_an_addition_for_each_key),
    ("two additions for each tile", with_two_halves),
    ("all", reference),
]
