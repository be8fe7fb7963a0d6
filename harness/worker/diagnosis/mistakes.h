// Known mistakes in kernels of this kind. Each is implemented as attention block by block in float64 with one thing
// wrong, so that its output can be computed. If a kernel's output agrees with one of these outputs, element by element,
// the agreement says more about the cause than any pattern of wrong elements.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "worker/diagnosis/tiling.h"
#include "worker/inputs.h"
#include "worker/reference.h"

namespace flash_ladder {

/// An element of Q, K or V.
struct Element {
  std::int64_t batch, head, row, column;
};

/// Online softmax (Milakov & Gimelshein, 2018; Dao, FlashAttention-2, Algorithm 1) with at most one thing wrong.
struct Mistake {
  std::string name = {};  // "scale_left_out"
  std::string text = {};  // the mistake in words, for messages: "the scores are not scaled"
  double score_factor = 1;
  // The element that is read in place of the requested one. Empty: the requested one.
  std::function<Element(Element)> Q = {}, K = {}, V = {};
  std::function<bool(std::int64_t key)> counts = {};  // empty: all keys count
  bool V_is_K = false;
  bool masked = true;  // otherwise all keys are seen even if the problem has a mask
  bool rescales_sum = true, rescales_O = true;
  bool keeps_max =
      true;  // otherwise the maximum of the first step is kept, although O and the sums are rescaled for the new one
  bool shares_max = true;    // otherwise each of the four lanes of a row takes the maximum of only its own columns of S
  bool shares_sum = true;    // otherwise each lane divides by the sum of only its own columns of P
  bool of_one_head = false;  // applies only to the head that was passed to known_mistakes()
};

/// Rows of one head as a kernel with this mistake computes them; the members are as for attend_rows().
AttendedRows attend_with(const Mistake& mistake, const Tiling& tiling, const Inputs& inputs, std::int64_t batch,
                         std::int64_t head, std::span<const std::int64_t> rows);

/// All mistakes to try for a problem, at batch entry `batch` and head `head`: a few dozen.
std::vector<Mistake> known_mistakes(const AttentionProblem& problem, const Tiling& tiling, std::int64_t batch,
                                    std::int64_t head);

}  // namespace flash_ladder
