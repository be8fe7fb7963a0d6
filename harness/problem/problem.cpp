#include "problem/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <compare>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "philox.h"
#include "problem/fields.h"

namespace flash_ladder {
namespace {

constexpr std::pair<const char*, Dtype> kDtypes[] = {
    {"fp16", Dtype::fp16}, {"bf16", Dtype::bf16}, {"e4m3", Dtype::e4m3}};

// Every member. If AttentionProblem gets another one, this does not compile: add it here and to kFields, and decide whether it
// matters to in_plainest_form(), visible_keys() and launch_args().
constexpr auto kMembers = [](const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, head_dim_v, causal, kv_heads, window_left,
               window_right, lengths, lengths_kv, packed, page_size, append, rotary_dim, rotary_interleaved, fp8_cache,
               softcap, alibi, sinks, dropout_p, dropout_seed, dropout_offset] = problem;
  return std::tie(batch, heads, seq_len, seq_len_kv, head_dim, dtype, head_dim_v, causal, kv_heads, window_left,
                  window_right, lengths, lengths_kv, packed, page_size, append, rotary_dim, rotary_interleaved,
                  fp8_cache, softcap, alibi, sinks, dropout_p, dropout_seed, dropout_offset);
};
static_assert(std::tuple_size_v<decltype(kMembers(AttentionProblem{}))> == std::tuple_size_v<decltype(kFields)>,
              "harness/problem/fields.h describes every member of AttentionProblem");

// ---- A value as text ----

std::string describe_value(const char* name, std::int64_t value) { return fmt::format("{} {}", name, value); }
std::string describe_value(const char* name, double value) { return fmt::format("{} {}", name, value); }
std::string describe_value(const char* /*name*/, Dtype dtype) { return to_string(dtype); }
std::string describe_value(const char* name, bool /*value*/) { return name; }
// "lengths 7/100/256"; for a large batch only the range.
std::string describe_value(const char* name, const std::vector<std::int64_t>& lengths) {
  constexpr std::size_t kMost = 8;
  if (lengths.size() <= kMost) return fmt::format("{} {}", name, fmt::join(lengths, "/"));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  return fmt::format("{} of {} to {}", name, *least, *most);
}

std::string file_name_part(const char* /*name*/, std::int64_t value) { return std::to_string(value); }
std::string file_name_part(const char* /*name*/, double value) { return fmt::format("{}", value); }
std::string file_name_part(const char* /*name*/, Dtype dtype) { return to_string(dtype); }
std::string file_name_part(const char* name, bool value) { return value ? name : "full"; }
// FNV-1a, over as many lengths as a batch may have.
std::string file_name_part(const char* /*name*/, const std::vector<std::int64_t>& lengths) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::int64_t length : lengths) sum = (sum ^ static_cast<std::uint64_t>(length)) * 0x100000001b3;
  return lengths.empty() ? "whole" : fmt::format("{:016x}", sum);
}

template <typename Value>
void read_value(const nlohmann::json& json, Value& value) {
  json.get_to(value);
}
void read_value(const nlohmann::json& json, Dtype& dtype) {
  const auto text = json.get<std::string>();
  const auto known = dtype_from_string(text);
  if (!known) throw std::runtime_error(fmt::format("dtype '{}' is unknown; allowed: {}", text, all_dtypes()));
  dtype = *known;
}

// [0, a, a + b, …] for [a, b, …].
std::vector<std::int64_t> sums_before(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums{0};
  for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

// The number of scores of one head that the mask does not hide; for a causal head without a window, half of all scores.
double scores(const AttentionProblem& problem, std::int64_t batch) {
  const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
  if (problem.window_left == kNoWindow && problem.window_right == kNoWindow)
    return (problem.causal ? 0.5 : 1.0) * queries * keys;
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
  std::vector<std::string> parts;
  for_each_field([&](const auto& field) {
    const auto& value = problem.*field.member;
    if (field.is_extension() && is_plain(field, problem)) return;
    if (field.same_as != nullptr && value == problem.*field.same_as) return;
    const bool beside_heads = field.name == std::string_view("kv_heads");  // although it is an extension's
    parts.insert(beside_heads ? parts.begin() + 2 : parts.end(), describe_value(field.name, value));
  });
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string file_name_part(const AttentionProblem& problem) {
  std::vector<std::string> parts;
  for_each_field([&](const auto& field) { parts.push_back(file_name_part(field.name, problem.*field.member)); });
  return fmt::format("{}", fmt::join(parts, "-"));
}

bool comes_before(const AttentionProblem& a, const AttentionProblem& b) {
  // Problems of one length are listed together.
  std::strong_ordering order =
      std::tie(a.dtype, a.seq_len, a.seq_len_kv) <=> std::tie(b.dtype, b.seq_len, b.seq_len_kv);
  for_each_field([&](const auto& field) {
    if (order == 0) order = std::strong_order(a.*field.member, b.*field.member);
  });
  return order < 0;
}

void to_json(nlohmann::json& json, const AttentionProblem& problem) {
  json = nlohmann::json::object();
  for_each_field([&]<typename Value>(const Field<Value>& field) {
    if (field.is_extension() && is_plain(field, problem)) return;
    if constexpr (std::is_same_v<Value, Dtype>)
      json[field.name] = to_string(problem.*field.member);
    else
      json[field.name] = problem.*field.member;
  });
}

void from_json(const nlohmann::json& json, AttentionProblem& problem) {
  problem = {};
  for_each_field([&](const auto& field) {
    const auto found = json.find(field.name);
    if (field.is_extension() && (found == json.end() || found->is_null())) return;
    read_value(json.at(field.name), problem.*field.member);
  });
  problem = in_plainest_form(std::move(problem));
}

bool is_plain(const AttentionProblem& problem) {
  bool plain = true;
  for_each_field([&](const auto& field) { plain &= !field.is_extension() || is_plain(field, problem); });
  return plain;
}

AttentionProblem in_plainest_form(AttentionProblem problem) {
  if (problem.head_dim_v == problem.head_dim) problem.head_dim_v = 0;
  if (problem.kv_heads == problem.heads) problem.kv_heads = 0;
  if (problem.window_left >= problem.seq_len_kv - 1) problem.window_left = kNoWindow;
  if (problem.window_right >= problem.seq_len - 1) problem.window_right = kNoWindow;
  if (problem.window_right == 0) problem.causal = true;
  if (problem.causal) problem.window_right = kNoWindow;
  if (problem.rotary_dim == 0) problem.rotary_interleaved = false;
  const auto drop_if_whole = [&](std::vector<std::int64_t>& of_each, std::int64_t of_all) {
    if (std::ssize(of_each) == problem.batch && std::ranges::count(of_each, of_all) == problem.batch) of_each.clear();
  };
  if (!problem.packed) {
    drop_if_whole(problem.lengths, problem.seq_len);
    drop_if_whole(problem.lengths_kv, problem.seq_len_kv);
  }
  return problem;
}

std::int64_t num_kv_heads(const AttentionProblem& problem) {
  return problem.kv_heads == 0 ? problem.heads : problem.kv_heads;
}

std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head) {
  return head / (problem.heads / num_kv_heads(problem));
}

std::int64_t value_head_dim(const AttentionProblem& problem) {
  return problem.head_dim_v == 0 ? problem.head_dim : problem.head_dim_v;
}

std::int64_t num_queries(const AttentionProblem& problem, std::int64_t batch) {
  return problem.lengths.empty() ? problem.seq_len : problem.lengths[batch];
}

std::int64_t num_keys(const AttentionProblem& problem, std::int64_t batch) {
  return problem.lengths_kv.empty() ? problem.seq_len_kv : problem.lengths_kv[batch];
}

std::vector<std::int64_t> lengths_of_cache(const AttentionProblem& problem) {
  std::vector<std::int64_t> lengths = problem.lengths_kv;
  for (std::int64_t& length : lengths) length -= problem.append;
  return lengths;
}

std::int64_t num_rows(const AttentionProblem& problem, std::int64_t batch) {
  return problem.packed ? num_queries(problem, batch) : problem.seq_len;
}

std::int64_t num_rows_kv(const AttentionProblem& problem, std::int64_t batch) {
  return problem.packed || problem.page_size != 0 ? num_keys(problem, batch) : problem.seq_len_kv;
}

std::vector<std::int64_t> first_rows(const AttentionProblem& problem) {
  return problem.packed ? sums_before(problem.lengths) : std::vector<std::int64_t>();
}

std::vector<std::int64_t> first_rows_kv(const AttentionProblem& problem) {
  return problem.packed ? sums_before(problem.lengths_kv) : std::vector<std::int64_t>();
}

std::int64_t total_rows(const AttentionProblem& problem) {
  return problem.packed ? first_rows(problem).back() : problem.batch * problem.seq_len;
}

std::int64_t total_rows_kv(const AttentionProblem& problem) {
  return problem.packed ? first_rows_kv(problem).back() : problem.batch * problem.seq_len_kv;
}

std::int64_t pages_per_entry(const AttentionProblem& problem) {
  return problem.page_size == 0 ? 0 : (problem.seq_len_kv - 1) / problem.page_size + 1;
}

KeyRange visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query) {
  const std::int64_t queries = num_queries(problem, batch), keys = num_keys(problem, batch);
  if (query >= queries) return {.begin = 0, .end = 0};
  // common/host/problem.h explains how the masks are aligned.
  const std::int64_t aligned = query + keys - queries;
  std::int64_t begin = 0, end = keys;
  if (problem.window_left != kNoWindow) begin = std::clamp<std::int64_t>(aligned - problem.window_left, 0, keys);
  if (problem.window_right != kNoWindow)
    end = std::clamp<std::int64_t>(aligned + problem.window_right + 1, begin, keys);
  if (problem.causal) end = std::clamp<std::int64_t>(aligned + 1, begin, end);
  return {.begin = begin, .end = end};
}

double floating_point_operations(const AttentionProblem& problem, const Products& products) {
  double of_one_head = 0;
  if (problem.lengths.empty() && problem.lengths_kv.empty())
    of_one_head = problem.batch * scores(problem, 0);
  else
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) of_one_head += scores(problem, batch);
  return 2.0 * of_one_head * problem.heads *
         (products.of_head_dim * problem.head_dim + products.of_head_dim_v * value_head_dim(problem));
}

double kv_element_bytes(const AttentionProblem& problem) {
  return problem.dtype == Dtype::e4m3 || problem.fp8_cache ? 1 : 2;
}

double tensor_bytes(const AttentionProblem& problem) {
  const double Q_bytes = problem.dtype == Dtype::e4m3 ? 1 : 2, O_bytes = 2;
  const bool packed = problem.packed && !problem.lengths.empty() && !problem.lengths_kv.empty();
  const double in_all = packed ? total_rows(problem) : 1.0 * problem.batch * problem.seq_len;
  const double in_all_kv = packed ? total_rows_kv(problem) : 1.0 * problem.batch * problem.seq_len_kv;
  const double rows = in_all * problem.heads, rows_kv = in_all_kv * num_kv_heads(problem);
  return (Q_bytes * rows + kv_element_bytes(problem) * rows_kv) * problem.head_dim +
         (kv_element_bytes(problem) * rows_kv + O_bytes * rows) * value_head_dim(problem);
}

double kv_gb_per_s(const AttentionProblem& problem, double tflops) {
  double keys = 0;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) keys += num_keys(problem, batch);
  const double bytes =
      keys * num_kv_heads(problem) * (problem.head_dim + value_head_dim(problem)) * kv_element_bytes(problem);
  const double operations = floating_point_operations(problem);
  return operations > 0 ? bytes / operations * tflops * 1e3 : 0;
}

ExtendedArgs launch_args(const AttentionProblem& problem, const Tensors& tensors, float softmax_scale,
                         void* workspace) {
  ExtendedArgs args;
  args.Q = tensors.Q;
  args.K = tensors.K;
  args.V = tensors.V;
  args.O = tensors.O;
  args.batch = static_cast<int>(problem.batch);
  args.heads = static_cast<int>(problem.heads);
  args.seq_len = static_cast<int>(problem.seq_len);
  args.seq_len_kv = static_cast<int>(problem.seq_len_kv);
  args.softmax_scale = softmax_scale;
  args.workspace = workspace;
  args.causal = problem.causal;
  args.kv_heads = static_cast<int>(num_kv_heads(problem));
  args.window_left = static_cast<int>(problem.window_left);
  args.window_right = static_cast<int>(problem.window_right);
  if (problem.dtype == Dtype::e4m3) args.scales = tensors.scales;
  args.log_sum_exp = tensors.log_sum_exp;
  if (problem.page_size != 0) {
    args.page_table = tensors.page_table;
    args.page_size = static_cast<int>(problem.page_size);
    args.page_table_width = static_cast<int>(tensors.page_table_width);
    args.num_pages = tensors.num_pages;
  }
  if (problem.append) {
    args.K_new = tensors.K_new;
    args.V_new = tensors.V_new;
  }
  if (problem.rotary_dim != 0) {
    args.rotary_cos = tensors.rotary_cos;
    args.rotary_sin = tensors.rotary_sin;
    args.rotary_dim = static_cast<int>(problem.rotary_dim);
    args.rotary_interleaved = problem.rotary_interleaved;
  }
  if (problem.fp8_cache) {
    args.K_scales = tensors.K_scales;
    args.V_scales = tensors.V_scales;
  }
  args.softcap = static_cast<float>(problem.softcap);
  if (problem.alibi) args.alibi_slopes = tensors.alibi_slopes;
  if (problem.sinks) args.sinks = tensors.sinks;
  args.dropout_keep = dropout_keep(problem.dropout_p);
  args.dropout_seed = static_cast<std::uint64_t>(problem.dropout_seed);
  args.dropout_offset = static_cast<std::uint32_t>(problem.dropout_offset);
  if (problem.packed) {
    for (Tensor* tensor : {&args.Q, &args.K, &args.V, &args.O}) tensor->batch_stride = 0;
    args.offsets = tensors.offsets;
    args.offsets_kv = tensors.offsets_kv;
    args.total = static_cast<int>(total_rows(problem));
    args.total_kv = static_cast<int>(total_rows_kv(problem));
    return args;
  }
  if (!problem.lengths.empty()) args.lengths = tensors.lengths;
  if (!problem.lengths_kv.empty()) args.lengths_kv = tensors.lengths_kv;
  return args;
}

}  // namespace flash_ladder
