// What a problem does to a score before the softmax, and to a weight after it. The reference of the forward pass and that of the
// gradients share it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "philox.h"
#include "problem/problem.h"
#include "worker/inputs.h"

namespace flash_ladder {

/// The scores of one head of Q, made from products of Q and K: softmax_scale, softcap and ALiBi.
template <typename T>
class ScoreChange {
 public:
  ScoreChange(const Inputs& inputs, std::int64_t batch, std::int64_t head)
      : scale_(inputs.scale()),
        softcap_(static_cast<T>(inputs.problem.softcap)),
        slope_(inputs.problem.alibi ? inputs.alibi_slopes[head] : 0),
        keys_more_(num_keys(inputs.problem, batch) - num_queries(inputs.problem, batch)) {}

  T operator()(T product, std::int64_t query, std::int64_t key) const {
    T score = product * scale_;
    if (softcap_ != 0) score = softcap_ * std::tanh(score / softcap_);
    return slope_ == 0 ? score : score - slope_ * static_cast<T>(std::abs(query + keys_more_ - key));
  }
  /// The derivative of a score with respect to softmax_scale · product: that of softcap · tanh(x / softcap) is 1 - tanh².
  T derivative(T product) const {
    if (softcap_ == 0) return 1;
    const T tanh = std::tanh(product * scale_ / softcap_);
    return 1 - tanh * tanh;
  }

 private:
  float scale_;
  T softcap_, slope_;
  std::int64_t keys_more_;
};

/// The weights of one head of Q that dropout keeps.
class DropoutMask {
 public:
  DropoutMask(const AttentionProblem& problem, std::int64_t batch, std::int64_t head)
      : keep_(dropout_keep(problem.dropout_p)),
        seed_(static_cast<std::uint64_t>(problem.dropout_seed)),
        offset_(static_cast<std::uint32_t>(problem.dropout_offset)),
        head_(static_cast<int>(batch * problem.heads + head)) {}

  bool drops_any() const { return keep_ < 256; }
  bool keeps(std::int64_t query, std::int64_t key) const {
    return is_kept(seed_, offset_, head_, static_cast<int>(query), static_cast<int>(key), keep_);
  }
  /// What a kept weight is multiplied by.
  template <typename T>
  T factor() const {
    return T{256} / static_cast<T>(keep_);
  }

 private:
  int keep_;
  std::uint64_t seed_;
  std::uint32_t offset_;
  int head_;
};

}  // namespace flash_ladder
