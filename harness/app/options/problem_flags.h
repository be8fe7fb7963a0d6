// The flags that describe a problem, one for each of its fields (problem/fields.h).
#pragma once

#include <CLI/CLI.hpp>
#include <map>
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
  /// The same with the defaults of the decoding track.
  AttentionProblem decoding_problem(bool is_virtual) const;

  /// The same, with 0 for each size that was not typed. Throws UsageError.
  AttentionProblem typed() const;

 private:
  bool given(const char* field) const;
  /// What was typed, and nothing else but sizes that are the same as others.
  AttentionProblem without_defaults() const;

  const CLI::App& app_;
  std::map<std::string, std::string> texts_;  // by field
  std::map<std::string, bool> switches_;
};

}  // namespace flash_ladder
