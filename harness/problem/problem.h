// The one home of what the harness does with the fields of a problem: each function here is the only one of its kind, and names
// every field. A new field of AttentionProblem (common/host/problem.h) is added to those in problem.cpp, which does not compile
// before that, to the flags (harness/app/problem_flags.cpp), and to Solves and why_unsupported(), which refuse it by name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "host/extended_args.h"
#include "host/problem.h"

namespace flash_ladder {

/// "fp16", "bf16" or "e4m3".
std::string to_string(Dtype dtype);
/// "fp16, bf16, e4m3".
std::string all_dtypes();
/// The inverse; nullopt for anything else.
std::optional<Dtype> dtype_from_string(const std::string& text);

/// For a reader: "batch 16, heads 16, seq_len 4096, head_dim 128, fp16". What is as in the plain problem (seq_len_kv that equals
/// seq_len, no mask) is not said.
std::string describe(const AttentionProblem& problem);

/// All that tells it from other problems, fit for the name of a file: "16-16-4096-4096-128-fp16-full".
std::string file_name_part(const AttentionProblem& problem);

/// The order of problems in files. Of two that differ, one comes before the other.
bool comes_before(const AttentionProblem& a, const AttentionProblem& b);

/// `problem` in harness/results/results.schema.json. An extension's field is a member only where it differs from its default, so
/// that what was recorded before there was such a field stays what it is.
void to_json(nlohmann::json& json, const AttentionProblem& problem);
void from_json(const nlohmann::json& json, AttentionProblem& problem);

/// The same problem with its defaults where they say the same: kv_heads that are as many as heads, a window that hides no key,
/// lengths that are those of all. Who reads a problem ends with it, so that problems that are the same are equal, and plain ones plain.
AttentionProblem in_plainest_form(AttentionProblem problem);

/// Whether it has nothing but sizes and a type: no field that only an extension solves.
bool is_plain(const AttentionProblem& problem);

/// Heads of K and V, and which of them a head of Q reads.
std::int64_t num_kv_heads(const AttentionProblem& problem);
std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head);

/// Queries and keys of a batch entry that are no padding.
std::int64_t num_queries(const AttentionProblem& problem, std::int64_t batch);
std::int64_t num_keys(const AttentionProblem& problem, std::int64_t batch);

/// The keys that a query sees: those from `begin` on and before `end`; none where both are the same.
struct KeyRange {
  std::int64_t begin, end;
};
/// The mask of the problem, which the reference applies.
KeyRange visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query);

/// 4 · heads · head_dim · the scores of all sequences: two products of 2 · M · N · K each. A causal problem has half of the scores, as
/// is the custom (Dao, FlashAttention-2, section 4.1), whatever the lengths; one with a window has those that are seen.
double floating_point_operations(const AttentionProblem& problem);
/// Bytes of Q, K, V and O.
double tensor_bytes(const AttentionProblem& problem);

/// What of a launch lies in device memory.
struct Tensors {
  Tensor Q, K, V, O;
  const int *lengths = nullptr, *lengths_kv = nullptr;  // as in ExtendedArgs
  const float* scales = nullptr;
};
/// The argument of a launch. Sizes fit 32 bits: see why_impossible().
ExtendedArgs launch_args(const AttentionProblem& problem, const Tensors& tensors, float softmax_scale, void* workspace);

}  // namespace flash_ladder
