// The fields of a problem, described once: the flags, the JSON, the names of files, the arguments of the Python package
// and the names in refusals are made from this table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "host/problem.h"
#include "host/registration.h"

namespace flash_ladder {

template <typename Value>
struct Field {
  const char* name;  // of the member, in JSON and in Python; the flag has - in place of _
  Value AttentionProblem::* member;
  const char* value_name;                       // in --help: what the flag is followed by; empty: nothing
  const char* help;                             // in --help; {} is where the defaults go
  bool Solves::* solves = nullptr;              // what a version has to solve; nullptr: every problem has this field
  std::int64_t least = 1;                       // of a number
  Value AttentionProblem::* same_as = nullptr;  // where its value comes from if it is not given

  constexpr bool is_extension() const { return solves != nullptr; }
};

/// In the order of --help. problem.cpp does not compile if a member of AttentionProblem is missing here.
inline constexpr std::tuple kFields{
    Field<std::int64_t>{"batch", &AttentionProblem::batch, "N", "({})"},
    Field<std::int64_t>{"heads", &AttentionProblem::heads, "N", "({})"},
    Field<std::int64_t>{"seq_len", &AttentionProblem::seq_len, "N", "Queries ({}); a multiple of the version's tile"},
    Field<std::int64_t>{.name = "seq_len_kv",
                        .member = &AttentionProblem::seq_len_kv,
                        .value_name = "N",
                        .help = "Keys and values (same as --seq-len)",
                        .same_as = &AttentionProblem::seq_len},
    Field<std::int64_t>{"head_dim", &AttentionProblem::head_dim, "N", "({}, the only one that most versions support)"},
    Field<std::int64_t>{"head_dim_v", &AttentionProblem::head_dim_v, "N", "That of V and O (same as --head-dim)",
                        &Solves::head_dim_v},
    Field<Dtype>{"dtype", &AttentionProblem::dtype, "TYPE", "fp16, bf16, or e4m3, which few versions compute (fp16)"},
    Field<bool>{"causal", &AttentionProblem::causal, "",
                "Causal mask: a query sees no later key; the last query sees all keys", &Solves::causal},
    Field<std::int64_t>{"kv_heads", &AttentionProblem::kv_heads, "N",
                        "Heads of K and V, each shared by equally many heads of Q (same as --heads)",
                        &Solves::kv_heads},
    Field<std::int64_t>{"window_left", &AttentionProblem::window_left, "N",
                        "Number of keys that a query sees to the left of its own (all)", &Solves::window, /*least=*/0},
    Field<std::int64_t>{"window_right", &AttentionProblem::window_right, "N",
                        "Number of keys that a query sees to the right of its own (all)", &Solves::window, /*least=*/0},
    Field<std::vector<std::int64_t>>{"lengths", &AttentionProblem::lengths, "N,N…",
                                     "Queries of each batch entry; the rest is padding (--seq-len for all)",
                                     &Solves::lengths, /*least=*/0},
    Field<std::vector<std::int64_t>>{"lengths_kv", &AttentionProblem::lengths_kv, "N,N…",
                                     "Keys of each batch entry (same as --lengths)", &Solves::lengths, /*least=*/0,
                                     &AttentionProblem::lengths},
    Field<bool>{"packed", &AttentionProblem::packed, "",
                "The sequences of --lengths lie one after the other in one tensor, without padding", &Solves::packed},
    Field<std::int64_t>{"page_size", &AttentionProblem::page_size, "N",
                        "Keys in a page of K and V; the pages are in any order (not paged)", &Solves::paged,
                        /*least=*/16},
    Field<bool>{"append", &AttentionProblem::append, "",
                "The last key and value of each batch entry are new, and are written into K and V", &Solves::append},
    Field<std::int64_t>{"rotary_dim", &AttentionProblem::rotary_dim, "N",
                        "Elements of queries and of the new key that are rotated (not rotated)", &Solves::rotary,
                        /*least=*/16},
    Field<bool>{"rotary_interleaved", &AttentionProblem::rotary_interleaved, "",
                "Rotates pairs of neighbours, not of an element of each half", &Solves::rotary},
    Field<bool>{"fp8_cache", &AttentionProblem::fp8_cache, "",
                "K and V are e4m3, of 8 bits, with a scale for each head of a batch entry", &Solves::fp8_cache},
    Field<double>{"softcap", &AttentionProblem::softcap, "X", "Caps each score S smoothly: X · tanh(S / X) (no cap)",
                  &Solves::scores},
    Field<bool>{"alibi", &AttentionProblem::alibi, "",
                "Subtracts a multiple of a key's distance from its score (ALiBi)", &Solves::scores},
    Field<bool>{"sinks", &AttentionProblem::sinks, "",
                "One more score for each head, which takes weight and has no value", &Solves::scores},
    Field<double>{"dropout_p", &AttentionProblem::dropout_p, "P",
                  "Drops each weight with this probability, rounded to a multiple of 1/256 (0)", &Solves::dropout},
    Field<std::int64_t>{"dropout_seed", &AttentionProblem::dropout_seed, "N",
                        "Which weights are dropped is a function of this, and of their positions (0)", &Solves::dropout,
                        /*least=*/0},
    Field<std::int64_t>{"dropout_offset", &AttentionProblem::dropout_offset, "N", "Another mask for the same seed (0)",
                        &Solves::dropout, /*least=*/0},
};

/// Calls visit(Field<Value>) for each field.
template <typename Visit>
void for_each_field(Visit visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kFields);
}

/// "--kv-heads" for "kv_heads".
inline std::string flag_of(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

/// Whether the field with this name is either on or off.
inline bool is_switch(std::string_view name) {
  bool found = false;
  for_each_field(
      [&]<typename Value>(const Field<Value>& field) { found |= std::is_same_v<Value, bool> && field.name == name; });
  return found;
}

/// Whether the problem has the value of the plain problem.
template <typename Value>
bool is_plain(const Field<Value>& field, const AttentionProblem& problem) {
  static const AttentionProblem kPlain;
  return problem.*field.member == kPlain.*field.member;
}

}  // namespace flash_ladder
