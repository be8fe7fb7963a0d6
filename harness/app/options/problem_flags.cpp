#include "app/options/problem_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "app/options/parse_integer.h"
#include "app/options/standard_shapes.h"
#include "errors.h"
#include "problem/problem.h"

namespace flash_ladder {
namespace {

const char* const kGroup = "The problem";

Dtype parse_dtype(const std::string& text) {
  const auto dtype = dtype_from_string(text);
  if (!dtype) throw UsageError(fmt::format("--dtype '{}' is unknown; allowed: {}", text, all_dtypes()));
  return *dtype;
}

// "100,64,7".
std::vector<std::int64_t> parse_lengths(const char* flag, const std::string& text) {
  std::vector<std::int64_t> lengths;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');)
    lengths.push_back(parse_integer<std::int64_t>(flag, part, 0, std::numeric_limits<std::int64_t>::max()));
  return lengths;
}

}  // namespace

ProblemFlags::ProblemFlags(CLI::App& app) : app_(app) {
  const auto add = [&](const char* flag, std::string& text, const std::string& help, const char* type = "N") {
    app.add_option(flag, text, help)->type_name(type)->group(kGroup);
  };
  add("--batch", batch_, fmt::format("({}; virtual GPU: {})", kDefaultShape.batch, kEmulatorShape.batch));
  add("--heads", heads_, fmt::format("({}; virtual GPU: {})", kStandardHeads, kEmulatorHeads));
  add("--seq-len", seq_len_,
      fmt::format("Queries ({}; virtual GPU: {}); a multiple of the version's tile", kDefaultShape.seq_len,
                  kEmulatorShape.seq_len));
  add("--seq-len-kv", seq_len_kv_, "Keys and values (same as --seq-len)");
  add("--head-dim", head_dim_, fmt::format("({}, the only one that the versions support)", kStandardHeadDim));
  add("--dtype", dtype_, "fp16, bf16, or e4m3, which few versions compute (fp16)", "TYPE");
  app.add_flag("--causal", causal_, "Causal mask: a query sees no later key; the last query sees all keys")
      ->group(kGroup);
  add("--kv-heads", kv_heads_, "Heads of K and V, each shared by equally many heads of Q (same as --heads)");
  add("--window", window_, "Number of keys that a query sees on either side of its own (all)");
  add("--lengths", lengths_, "Queries of each batch entry; the rest is padding (--seq-len for all)", "N,N…");
  add("--lengths-kv", lengths_kv_, "Keys of each batch entry (same as --lengths)", "N,N…");
}

std::vector<std::string> ProblemFlags::names() {
  return {"--batch",  "--heads",    "--seq-len", "--seq-len-kv", "--head-dim",  "--dtype",
          "--causal", "--kv-heads", "--window",  "--lengths",    "--lengths-kv"};
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
  const auto longest = [](const std::vector<std::int64_t>& of_each, std::int64_t otherwise) {
    return of_each.empty() ? otherwise : std::max<std::int64_t>(std::ranges::max(of_each), 1);
  };
  AttentionProblem problem;
  auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] = problem;
  if (app_.count("--lengths") != 0) lengths = parse_lengths("--lengths", lengths_);
  lengths_kv = app_.count("--lengths-kv") != 0 ? parse_lengths("--lengths-kv", lengths_kv_) : lengths;
  const StandardShape shape = is_virtual ? kEmulatorShape : kDefaultShape;
  batch = size("--batch", batch_, lengths_kv.empty() ? shape.batch : std::ssize(lengths_kv));
  heads = size("--heads", heads_, is_virtual ? kEmulatorHeads : kStandardHeads);
  seq_len = size("--seq-len", seq_len_, longest(lengths, shape.seq_len));
  seq_len_kv = size("--seq-len-kv", seq_len_kv_, std::max(seq_len, longest(lengths_kv, 1)));
  head_dim = size("--head-dim", head_dim_, kStandardHeadDim);
  dtype = parse_dtype(dtype_);
  causal = causal_;
  kv_heads = size("--kv-heads", kv_heads_, 0);
  if (app_.count("--window") != 0) window = parse_integer<std::int64_t>("--window", window_, 0, kMost);
  return in_plainest_form(std::move(problem));
}

}  // namespace flash_ladder
