// What the harness does with a problem. The fields are described in problem/fields.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/extended_args.h"
#include "host/problem.h"

namespace flash_ladder {

/// "fp16", "bf16" or "e4m3".
std::string to_string(Dtype dtype);
/// "fp16, bf16, e4m3".
std::string all_dtypes();
/// The inverse; nullopt for anything else.
std::optional<Dtype> dtype_from_string(const std::string& text);

/// For a reader: "batch 16, heads 16, seq_len 4096, head_dim 128, fp16". Fields that have the values of the plain
/// problem (seq_len_kv equal to seq_len, no mask) are left out.
std::string describe(const AttentionProblem& problem);

/// Everything that distinguishes it from other problems, suitable for a file name: "16-16-4096-4096-128-fp16-full".
std::string file_name_part(const AttentionProblem& problem);

/// The order of problems in files. Of two different problems, one comes before the other.
bool comes_before(const AttentionProblem& a, const AttentionProblem& b);

/// `problem` in harness/results/results.schema.json. An extension's field is a member only if it differs from its
/// default, so that files recorded before the field existed remain valid.
void to_json(nlohmann::json& json, const AttentionProblem& problem);
void from_json(const nlohmann::json& json, AttentionProblem& problem);

/// The same problem with default values for fields that have the same effect: kv_heads equal to heads, a side of the window
/// that hides no key, lengths that are all full. A window without keys to the right is the causal mask. All code that reads
/// a problem calls this last, so that equivalent problems compare equal, and plain ones are plain.
AttentionProblem in_plainest_form(AttentionProblem problem);

/// Whether the problem has only sizes and a type, and no field that only an extension solves.
bool is_plain(const AttentionProblem& problem);

/// The number of heads of K and V, and which of them a head of Q reads.
std::int64_t num_kv_heads(const AttentionProblem& problem);
std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head);

/// The elements in a row of V and O.
std::int64_t value_head_dim(const AttentionProblem& problem);

/// The number of queries and keys of a batch entry that are not padding.
std::int64_t num_queries(const AttentionProblem& problem, std::int64_t batch);
std::int64_t num_keys(const AttentionProblem& problem, std::int64_t batch);

/// The keys of each batch entry that are in the cache before a launch: `lengths_kv` without a new key.
std::vector<std::int64_t> lengths_of_cache(const AttentionProblem& problem);

/// The number of rows of Q and O, and of K and V, that a batch entry has in memory: with padding, unless it is packed.
std::int64_t num_rows(const AttentionProblem& problem, std::int64_t batch);
std::int64_t num_rows_kv(const AttentionProblem& problem, std::int64_t batch);
/// If packed, the rows before each sequence, and after the last one: [batch + 1]. Otherwise empty.
std::vector<std::int64_t> first_rows(const AttentionProblem& problem);
std::vector<std::int64_t> first_rows_kv(const AttentionProblem& problem);
/// The rows of Q and O, and of K and V, of all batch entries.
std::int64_t total_rows(const AttentionProblem& problem);
std::int64_t total_rows_kv(const AttentionProblem& problem);
/// If K and V are paged, the most pages that a batch entry can have; otherwise 0.
std::int64_t pages_per_entry(const AttentionProblem& problem);

/// The keys that a query sees: those from `begin` up to but not including `end`; no keys if the two are equal.
struct KeyRange {
  std::int64_t begin, end;
};
/// The mask of the problem, which the reference applies.
KeyRange visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query);

/// The matrix products of a kind of problem. In each, two sizes are the numbers of queries and of keys; the third one is head_dim or
/// head_dim_v. These are the forward pass's: S = Q Kᵀ and O = P V.
struct Products {
  int of_head_dim = 1, of_head_dim_v = 1;
};
/// 2 · heads · the scores of all sequences · (head_dim + head_dim_v): a product takes 2 · M · N · K. By convention a causal
/// problem has half of the scores (Dao, FlashAttention-2, section 4.1), whatever the lengths; a problem with a window
/// has only the scores that it does not hide.
double floating_point_operations(const AttentionProblem& problem, const Products& products = {});
/// Bytes of an element of K or V.
double kv_element_bytes(const AttentionProblem& problem);
/// Bytes of Q, K, V and O.
double tensor_bytes(const AttentionProblem& problem);

/// With so few queries, K and V are read faster than they are used for, and the problem is one of decoding.
constexpr std::int64_t kMostDecodingQueries = 16;
inline bool is_decoding(const AttentionProblem& problem) { return problem.seq_len <= kMostDecodingQueries; }
/// The metric of decoding: bytes of K and V, without padding and each counted once, per second, in units of 10^9. `tflops` is
/// the same time as TFLOP/s.
double kv_gb_per_s(const AttentionProblem& problem, double tflops);

/// The device memory of a launch.
struct Tensors {
  Tensor Q, K, V, O;
  const int *lengths = nullptr, *lengths_kv = nullptr;  // as in ExtendedArgs
  const float* scales = nullptr;
  float* log_sum_exp = nullptr;
  const int *offsets = nullptr, *offsets_kv = nullptr;
  const float *alibi_slopes = nullptr, *sinks = nullptr;
  const int* page_table = nullptr;
  int page_table_width = 0, num_pages = 0;
  Tensor K_new = {}, V_new = {};
  const void *rotary_cos = nullptr, *rotary_sin = nullptr;
  const float *K_scales = nullptr, *V_scales = nullptr;
};
/// The argument of a launch. Sizes fit 32 bits: see why_impossible().
ExtendedArgs launch_args(const AttentionProblem& problem, const Tensors& tensors, float softmax_scale, void* workspace);

}  // namespace flash_ladder
