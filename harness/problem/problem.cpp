#include "problem/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "json_members.h"

namespace flash_ladder {
namespace {

constexpr std::pair<const char*, Dtype> kDtypes[] = {
    {"fp16", Dtype::fp16}, {"bf16", Dtype::bf16}, {"e4m3", Dtype::e4m3}};

// Every field, so that none is forgotten: if AttentionProblem gets another one, this does not compile.
auto fields(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] =
      problem;
  return std::tuple(dtype, seq_len, seq_len_kv, batch, heads, head_dim, causal, kv_heads, window, lengths, lengths_kv);
}

// ", lengths 7/100/256"; for a large batch only the range.
std::string describe_lengths(const char* name, const std::vector<std::int64_t>& lengths) {
  constexpr std::size_t kMost = 8;
  if (lengths.empty()) return "";
  if (lengths.size() <= kMost) return fmt::format(", {} {}", name, fmt::join(lengths, "/"));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  return fmt::format(", {} of {} to {}", name, *least, *most);
}

// FNV-1a, over as many lengths as a batch may have.
std::string file_name_part(const std::vector<std::int64_t>& lengths) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::int64_t length : lengths) sum = (sum ^ static_cast<std::uint64_t>(length)) * 0x100000001b3;
  return lengths.empty() ? "whole" : fmt::format("{:016x}", sum);
}

// The number of scores of one head that the mask does not hide; for a causal head without a window, half of all scores.
double scores(const AttentionProblem& problem, std::int64_t batch) {
  const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
  if (problem.window == kNoWindow) return (problem.causal ? 0.5 : 1.0) * queries * keys;
  double seen = 0;
  for (std::int64_t query = 0; query < queries; ++query) {
    const auto [begin, end] = visible_keys(problem, batch, query);
    seen += end - begin;
  }
  return seen;
}

}  // namespace

std::string to_string(Dtype dtype) {
  for (const auto& [name, known] : kDtypes)
    if (known == dtype) return name;
  throw std::logic_error("a Dtype without a name");
}

std::optional<Dtype> dtype_from_string(const std::string& text) {
  for (const auto& [name, known] : kDtypes)
    if (name == text) return known;
  return std::nullopt;
}

std::string all_dtypes() {
  std::vector<std::string> names;
  for (const auto& [name, known] : kDtypes) names.emplace_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string describe(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] =
      problem;
  const std::string groups = kv_heads == 0 ? "" : fmt::format(", kv_heads {}", kv_heads);
  const std::string keys = seq_len_kv == seq_len ? "" : fmt::format(", seq_len_kv {}", seq_len_kv);
  return fmt::format(
      "batch {}, heads {}{}, seq_len {}{}, head_dim {}, {}{}{}{}{}", batch, heads, groups, seq_len, keys, head_dim,
      to_string(dtype), causal ? ", causal" : "", window == kNoWindow ? "" : fmt::format(", window {}", window),
      describe_lengths("lengths", lengths), lengths_kv == lengths ? "" : describe_lengths("lengths_kv", lengths_kv));
}

std::string file_name_part(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] =
      problem;
  return fmt::format("{}-{}-{}-{}-{}-{}-{}-{}-{}-{}-{}", batch, heads, seq_len, seq_len_kv, head_dim, to_string(dtype),
                     causal ? "causal" : "full", kv_heads, window, file_name_part(lengths), file_name_part(lengths_kv));
}

bool comes_before(const AttentionProblem& a, const AttentionProblem& b) { return fields(a) < fields(b); }

void to_json(nlohmann::json& json, const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] =
      problem;
  json = {{"batch", batch},           {"heads", heads},       {"seq_len", seq_len},
          {"seq_len_kv", seq_len_kv}, {"head_dim", head_dim}, {"dtype", to_string(dtype)}};
  if (causal) json["causal"] = causal;
  if (kv_heads != 0) json["kv_heads"] = kv_heads;
  if (window != kNoWindow) json["window"] = window;
  if (!lengths.empty()) json["lengths"] = lengths;
  if (!lengths_kv.empty()) json["lengths_kv"] = lengths_kv;
}

void from_json(const nlohmann::json& json, AttentionProblem& problem) {
  problem = {};
  auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] = problem;
  json.at("batch").get_to(batch);
  json.at("heads").get_to(heads);
  json.at("seq_len").get_to(seq_len);
  json.at("seq_len_kv").get_to(seq_len_kv);
  json.at("head_dim").get_to(head_dim);
  const auto text = json.at("dtype").get<std::string>();
  const auto known = dtype_from_string(text);
  if (!known) throw std::runtime_error(fmt::format("dtype '{}' is unknown; allowed: {}", text, all_dtypes()));
  dtype = *known;
  read_known(json, "causal", causal);
  read_known(json, "kv_heads", kv_heads);
  read_known(json, "window", window);
  read_known(json, "lengths", lengths);
  read_known(json, "lengths_kv", lengths_kv);
  problem = in_plainest_form(std::move(problem));
}

bool is_plain(const AttentionProblem& problem) {
  return problem == AttentionProblem{.batch = problem.batch,
                                     .heads = problem.heads,
                                     .seq_len = problem.seq_len,
                                     .seq_len_kv = problem.seq_len_kv,
                                     .head_dim = problem.head_dim,
                                     .dtype = problem.dtype};
}

AttentionProblem in_plainest_form(AttentionProblem problem) {
  auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] = problem;
  if (kv_heads == heads) kv_heads = 0;
  if (window >= std::max(seq_len, seq_len_kv) - 1) window = kNoWindow;
  const auto drop_if_whole = [&, batch = batch](std::vector<std::int64_t>& of_each, std::int64_t of_all) {
    if (std::ssize(of_each) == batch && std::ranges::count(of_each, of_all) == batch) of_each.clear();
  };
  drop_if_whole(lengths, seq_len);
  drop_if_whole(lengths_kv, seq_len_kv);
  return problem;
}

std::int64_t num_kv_heads(const AttentionProblem& problem) {
  return problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
}

std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head) {
  return head / (problem.heads / num_kv_heads(problem));
}

std::int64_t num_queries(const AttentionProblem& problem, std::int64_t batch) {
  return problem.lengths.empty() ? problem.seq_len : problem.lengths[batch];
}

std::int64_t num_keys(const AttentionProblem& problem, std::int64_t batch) {
  return problem.lengths_kv.empty() ? problem.seq_len_kv : problem.lengths_kv[batch];
}

KeyRange visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query) {
  const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
  if (query >= queries) return {.begin = 0, .end = 0};
  // common/host/problem.h explains how the masks are aligned.
  const std::int64_t aligned = query + keys - queries;
  std::int64_t begin = 0, end = keys;
  if (problem.window != kNoWindow) {
    begin = std::clamp<std::int64_t>(aligned - problem.window, 0, keys);
    end = std::clamp<std::int64_t>(aligned + problem.window + 1, begin, keys);
  }
  if (problem.causal) end = std::clamp<std::int64_t>(aligned + 1, begin, end);
  return {.begin = begin, .end = end};
}

double floating_point_operations(const AttentionProblem& problem) {
  double of_one_head = 0;
  if (problem.lengths.empty() && problem.lengths_kv.empty())
    of_one_head = problem.batch * scores(problem, 0);
  else
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) of_one_head += scores(problem, batch);
  return 4.0 * of_one_head * problem.heads * problem.head_dim;
}

double tensor_bytes(const AttentionProblem& problem) {
  const double input_bytes = problem.dtype == Dtype::e4m3 ? 1 : 2, output_bytes = 2;
  const double rows = 1.0 * problem.heads * problem.seq_len, rows_kv = 1.0 * num_kv_heads(problem) * problem.seq_len_kv;
  return problem.batch * (input_bytes * (rows + 2 * rows_kv) + output_bytes * rows) * problem.head_dim;
}

ExtendedArgs launch_args(const AttentionProblem& problem, const Tensors& tensors, float softmax_scale,
                         void* workspace) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal, kv_heads, window, lengths, lengths_kv] =
      problem;
  ExtendedArgs args;
  args.Q = tensors.Q;
  args.K = tensors.K;
  args.V = tensors.V;
  args.O = tensors.O;
  args.batch = static_cast<int>(batch);
  args.heads = static_cast<int>(heads);
  args.seq_len = static_cast<int>(seq_len);
  args.seq_len_kv = static_cast<int>(seq_len_kv);
  args.softmax_scale = softmax_scale;
  args.workspace = workspace;
  args.causal = causal;
  args.kv_heads = static_cast<int>(num_kv_heads(problem));
  args.window = static_cast<int>(window);
  if (dtype == Dtype::e4m3) args.scales = tensors.scales;
  if (!lengths.empty()) args.lengths = tensors.lengths;
  if (!lengths_kv.empty()) args.lengths_kv = tensors.lengths_kv;
  return args;
}

}  // namespace flash_ladder
