// Known mistakes in kernels that compute gradients. Each is implemented as the formulas of common/gradients.h in float64 with
// one thing wrong, as mistakes.h does for attention.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "worker/diagnosis/gradient_probes.h"
#include "worker/inputs.h"
#include "worker/tensors.h"

namespace flash_ladder {

/// What a kernel has of one query and one key before it computes P and dS.
struct BeforeP {
  double product, L, dP, D;  // `product` is that of Q and K, from which S is made
  double scale;
  double softcap = 0, alibi = 0;  // the cap, and the slope of the head; 0: none
  std::int64_t distance = 0;      // of the key from the one that is aligned with the query
  double kept = 1;                // what dropout multiplies the weight by: 0, or 256 / keep
};

/// The gradients with at most one thing wrong.
struct GradientMistake {
  std::string name = {};  // "dK_not_scaled"
  std::string text = {};  // in words, for messages: "dK is not multiplied by the scale of the scores"
  std::array<bool, 3> concerns =
      {};  // dQ, dK, dV: the others are right. Of several, a kernel may compute one correctly.
  std::function<double(const BeforeP&)> P = {}, dS = {};  // in place of these
  bool takes_other = false;  // the product is with dO in place of Q, Q in place of dO, or V in place of K
  bool dP_takes_K = false;
  std::int64_t terms_of_S = 0, terms_of_dP = 0;  // elements of a row that the product sums; 0: all
  bool D_lacks_dropout = false;                  // D is that of an O without dropout
  double factor = 1;                             // of the gradient
  std::function<bool(std::int64_t query, std::int64_t key)> counts = {};  // empty: all that are visible
  std::function<std::int64_t(std::int64_t query)> row_of_L = {}, row_of_D = {};
  std::function<std::int64_t(std::int64_t query)> row_of_all = {};  // of Q, dO, L and D
  // In place of visible_keys(), which a kernel with other lengths or another alignment computes.
  std::function<KeyRange(const AttentionProblem& problem, std::int64_t batch, std::int64_t query)> visible = {};
  // In place of query + keys - queries - key, and of batch · heads + head.
  std::function<std::int64_t(std::int64_t query, std::int64_t key)> distance = {};
  std::function<std::int64_t(std::int64_t batch, std::int64_t head)> head_of_mask = {}, head_of_slope = {};
  bool mask_is_transposed = false;  // the mask of dropout is that of query `key` and key `query`
};

/// All mistakes to try for a problem whose tiles have these sizes.
std::vector<GradientMistake> known_gradient_mistakes(const AttentionProblem& problem, std::int64_t block_q,
                                                     std::int64_t block_kv);

/// A row of dQ, dK or dV (`which`, in the order of kGradientNames) as a kernel with this mistake computes it; `head` is one of
/// the gradient's.
std::vector<double> gradient_row_with(const GradientMistake& mistake, const Inputs& inputs, std::size_t which,
                                      std::int64_t batch, std::int64_t head, std::int64_t row);

/// Those mistakes that produce every wrong gradient, in rows that are sampled from the first wrong head of each.
std::vector<GradientMistake> gradient_mistakes_that_explain(const Inputs& inputs,
                                                            const std::array<Reference, 3>& references,
                                                            const std::vector<HostBuffer>& outputs,
                                                            std::int64_t block_q, std::int64_t block_kv,
                                                            const Progress& progress = {});

}  // namespace flash_ladder
