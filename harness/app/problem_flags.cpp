#include "app/problem_flags.h"

#include <fmt/format.h>

#include <limits>

#include "app/parse_integer.h"
#include "errors.h"
#include "problem/problem.h"

namespace flash_ladder {
namespace {

const char* const kGroup = "The problem";

Dtype parse_dtype(const std::string& text) {
  const auto dtype = dtype_from_string(text);
  if (!dtype) throw UsageError(fmt::format("--dtype '{}' is unknown; allowed are fp16 and bf16", text));
  return *dtype;
}

}  // namespace

ProblemFlags::ProblemFlags(CLI::App& app) : app_(app) {
  const auto add = [&](const char* flag, std::string& text, const char* help, const char* type = "N") {
    app.add_option(flag, text, help)->type_name(type)->group(kGroup);
  };
  add("--batch", batch_, "(16; emulator: 1)");
  add("--heads", heads_, "(16; emulator: 2)");
  add("--seq-len", seq_len_, "Queries (4096; emulator: 256); a multiple of the version's tile");
  add("--seq-len-kv", seq_len_kv_, "Keys and values (as --seq-len)");
  add("--head-dim", head_dim_, "(128, the only one that the versions support)");
  add("--dtype", dtype_, "fp16 or bf16 (fp16)", "TYPE");
  app.add_flag("--causal", causal_, "A query sees no later key; the last query sees them all")->group(kGroup);
}

std::vector<std::string> ProblemFlags::names() {
  return {"--batch", "--heads", "--seq-len", "--seq-len-kv", "--head-dim", "--dtype", "--causal"};
}

AttentionProblem ProblemFlags::typed() const {
  AttentionProblem problem = this->problem(/*is_virtual=*/false);
  const auto forget = [&](const char* flag, std::int64_t& size) {
    if (app_.count(flag) == 0) size = 0;
  };
  forget("--batch", problem.batch);
  forget("--heads", problem.heads);
  forget("--seq-len", problem.seq_len);
  forget("--seq-len-kv", problem.seq_len_kv);
  forget("--head-dim", problem.head_dim);
  return problem;
}

AttentionProblem ProblemFlags::problem(bool is_virtual) const {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto size = [&](const char* flag, const std::string& text, std::int64_t otherwise) {
    return app_.count(flag) != 0 ? parse_integer<std::int64_t>(flag, text, 1, kMost) : otherwise;
  };
  AttentionProblem problem;
  auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  batch = size("--batch", batch_, is_virtual ? 1 : 16);
  heads = size("--heads", heads_, is_virtual ? 2 : 16);
  seq_len = size("--seq-len", seq_len_, is_virtual ? 256 : 4096);
  seq_len_kv = size("--seq-len-kv", seq_len_kv_, seq_len);
  head_dim = size("--head-dim", head_dim_, 128);
  dtype = parse_dtype(dtype_);
  causal = causal_;
  return problem;
}

}  // namespace flash_ladder
