// Distributions of the elements of Q, K and V: the names, which the command line accepts (--data), and the definitions.
// harness/worker/inputs.cpp generates them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace flash_ladder {

/// In the definitions, z is a standard normal number, a new one for each element; w is a vector of such numbers and u a
/// unit vector, both drawn once for each head of K and V of each batch entry; n is the number of keys. Lower-case q, k
/// and v are one row of Q, K and V. If a definition does not mention a tensor, its elements are z.
enum class Distribution {
  // The convention of published benchmarks, and the default.
  normal,  // q, k, v = z

  // Used only by the check, unless --data requests it.
  offset_mean,  // q, k = 0.5 + z and v = 1 + z: sums that do not average out to 0
  large_logit,  // q = 16 z: scores of about ±50, so that softmax is close to a maximum and most of P underflows
  ramp,  // q = 1 + z/4, k = t + z/4, with t from -2 to 2 over the keys: each tile raises the maximum of every row

  // Data on which versions differ in speed, or in how often they skip work.
  q_times_3,   // q = 3 z
  q_times_6,   // q = 6 z
  sink,        // q = z + w; key 0 is 4 w, every other k = z - w/2
  rising,      // q = z + 8 u, k = z + t u, with t from 0 to 16 over the keys
  falling,     // q = z + 8 u, k = z + t u, with t from 16 to 0 over the keys
  steps,       // q = z + 16 u, k = z + j u, with j the key's number divided by 64 and rounded down
  zeros,       // q, k, v = 0
  equal_keys,  // every k = w

  // Data that resemble the heads of a trained model.
  //
  // diagonal: every trained model contains heads that look at a fixed offset from the query (Clark et al., "What Does
  // BERT Look At?", 2019, section 3.1; Voita et al., "Analyzing Multi-Head Self-Attention", 2019). Barbero et al.
  // ("Round and Round We Go! What makes Rotary Positional Encodings useful?", ICLR 2025) show that a model with rotary
  // position embeddings builds such heads from the highest frequencies, and these data do the same: r(p) has cos(p f)
  // and sin(p f) for the 16 highest frequencies f of Su et al. ("RoFormer", 2021), and 0 elsewhere. p is the place of a
  // key, or the key on a query's diagonal.
  //
  // four_sinks: Xiao et al. ("Efficient Streaming Language Models with Attention Sinks", ICLR 2024) find that most heads
  // assign a large share of their attention to the first four tokens. Gu et al. ("When Attention Sink Emerges in Language
  // Models", ICLR 2025) attribute this to the direction of these keys, which all queries share, and not to their length.
  //
  // broad: the high-entropy heads of Clark et al., section 3.3, whose output is nearly the mean of V.
  diagonal,    // q = z + 5 r(p), k = z + 5 r(p)
  four_sinks,  // q = z + 10 u; keys 0 to 3 are z + 10 u
  broad,       // q = z/4
  trained,     // the three kinds in turn: head h of K and V is diagonal, four-sinks or broad, for h mod 3 = 0, 1 or 2

  // Each head of K and V is one of the heads in harness/worker/adversarial.h; after the designed ones, further heads
  // are drawn from the seed.
  adversarial,
};

/// "normal", "q-times-3", …
std::string to_string(Distribution distribution);
/// The inverse; nullopt for anything else.
std::optional<Distribution> distribution_from_string(std::string_view text);
/// The definition in one line.
std::string definition(Distribution distribution);
/// In JSON, the distribution's name. Reading throws std::runtime_error for any other name.
void to_json(nlohmann::json& json, Distribution distribution);
void from_json(const nlohmann::json& json, Distribution& distribution);
/// "normal, offset-mean, …".
std::string all_distributions();

}  // namespace flash_ladder
