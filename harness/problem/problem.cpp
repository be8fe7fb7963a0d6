#include "problem/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>

namespace flash_ladder {
namespace {

// Every field, so that none is forgotten: with one more in AttentionProblem this does not compile.
auto fields(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  return std::tuple(dtype, seq_len, seq_len_kv, batch, heads, head_dim, causal);
}

template <typename T>
void read_or_keep(const nlohmann::json& object, const char* member, T& value) {
  if (const auto found = object.find(member); found != object.end()) found->get_to(value);
}

}  // namespace

std::string to_string(Dtype dtype) { return dtype == Dtype::fp16 ? "fp16" : "bf16"; }

std::optional<Dtype> dtype_from_string(const std::string& text) {
  if (text == "fp16") return Dtype::fp16;
  if (text == "bf16") return Dtype::bf16;
  return std::nullopt;
}

std::string describe(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  const std::string keys = seq_len_kv == seq_len ? "" : fmt::format(", seq_len_kv {}", seq_len_kv);
  return fmt::format("batch {}, heads {}, seq_len {}{}, head_dim {}, {}{}", batch, heads, seq_len, keys, head_dim,
                     to_string(dtype), causal ? ", causal" : "");
}

std::string file_name_part(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  return fmt::format("{}-{}-{}-{}-{}-{}-{}", batch, heads, seq_len, seq_len_kv, head_dim, to_string(dtype),
                     causal ? "causal" : "full");
}

bool comes_before(const AttentionProblem& a, const AttentionProblem& b) { return fields(a) < fields(b); }

void to_json(nlohmann::json& json, const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  json = {{"batch", batch},           {"heads", heads},       {"seq_len", seq_len},
          {"seq_len_kv", seq_len_kv}, {"head_dim", head_dim}, {"dtype", to_string(dtype)}};
  if (causal) json["causal"] = causal;
}

void from_json(const nlohmann::json& json, AttentionProblem& problem) {
  problem = {};
  auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  json.at("batch").get_to(batch);
  json.at("heads").get_to(heads);
  json.at("seq_len").get_to(seq_len);
  json.at("seq_len_kv").get_to(seq_len_kv);
  json.at("head_dim").get_to(head_dim);
  const auto text = json.at("dtype").get<std::string>();
  const auto known = dtype_from_string(text);
  if (!known) throw std::runtime_error(fmt::format("dtype '{}' is unknown; allowed: fp16, bf16", text));
  dtype = *known;
  read_or_keep(json, "causal", causal);
}

KeyRange visible_keys(const AttentionProblem& problem, std::int64_t query) {
  const std::int64_t all = problem.seq_len_kv;
  // common/host/problem.h says where the mask lies.
  return {.begin = 0,
          .end = problem.causal ? std::clamp<std::int64_t>(query + 1 + all - problem.seq_len, 0, all) : all};
}

double floating_point_operations(const AttentionProblem& problem) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
  return (causal ? 2.0 : 4.0) * batch * heads * seq_len * seq_len_kv * head_dim;
}

double tensor_bytes(const AttentionProblem& problem) {
  constexpr double kElementBytes = 2;  // fp16 and bf16 alike
  return kElementBytes * problem.batch * problem.heads * problem.head_dim *
         (2.0 * problem.seq_len + 2.0 * problem.seq_len_kv);
}

ExtendedArgs launch_args(const AttentionProblem& problem, const Tensors& tensors, float softmax_scale,
                         void* workspace) {
  const auto& [batch, heads, seq_len, seq_len_kv, head_dim, dtype, causal] = problem;
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
  return args;
}

}  // namespace flash_ladder
