// The flags that describe a problem, one for each of its fields.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "host/problem.h"

namespace flash_ladder {

/// Holds the typed values and, once they are parsed, the problem.
class ProblemFlags {
 public:
  /// Adds the flags. This object must stay alive until parsing has finished.
  explicit ProblemFlags(CLI::App& app);
  ProblemFlags(const ProblemFlags&) = delete;
  ProblemFlags& operator=(const ProblemFlags&) = delete;

  /// "--batch", …
  static std::vector<std::string> names();

  /// The requested problem; values that were not typed get the defaults for a GPU, or smaller ones for the virtual GPU.
  /// Accepts any size from 1 up that fits in 64 bits. Throws UsageError.
  AttentionProblem problem(bool is_virtual) const;

  /// The same, with 0 for each size that was not typed. Throws UsageError.
  AttentionProblem typed() const;

 private:
  const CLI::App& app_;
  std::string batch_, heads_, seq_len_, seq_len_kv_, head_dim_, dtype_ = "fp16", kv_heads_, window_, lengths_,
                                                                lengths_kv_;
  bool causal_ = false;
};

}  // namespace flash_ladder
