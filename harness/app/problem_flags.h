// The flags that name a problem, one for each of its fields.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "host/problem.h"

namespace flash_ladder {

/// What was typed, and once it is read, the problem.
class ProblemFlags {
 public:
  /// Adds the flags. This object has to live as long as the parsing takes.
  explicit ProblemFlags(CLI::App& app);
  ProblemFlags(const ProblemFlags&) = delete;
  ProblemFlags& operator=(const ProblemFlags&) = delete;

  /// "--batch", …
  static std::vector<std::string> names();

  /// The problem that was asked for; what was not typed is as for a GPU, or smaller for the virtual one. Any size from 1 on that 64
  /// bits hold is taken here. Throws UsageError.
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
