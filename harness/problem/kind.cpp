#include "problem/kind.h"

#include <stdexcept>

namespace flash_ladder {

const KindOfProblem& describe(ProblemKind kind) {
  constexpr std::string_view kSeveralTiles =
      "With few SMs, a CTA takes several query tiles; with 5, CTAs take different numbers of them";
  constexpr std::string_view kSecondTile =
      "where each CTA has one query tile, it is right: something is wrong from a CTA's second query tile on";
  static constexpr KindOfProblem kForward{.name = "forward",
                                          .products = {.of_head_dim = 1, .of_head_dim_v = 1},  // S; O
                                          .outputs = "O",
                                          .few_sms = kSeveralTiles,
                                          .wrong_on_few_sms = kSecondTile,
                                          .has_peers = true};
  static constexpr KindOfProblem kBackward{.name = "backward",
                                           .products = {.of_head_dim = 3, .of_head_dim_v = 2},  // S, dQ, dK; dP, dV
                                           .outputs = "dQ, dK and dV",
                                           .few_sms = kSeveralTiles,
                                           .wrong_on_few_sms = kSecondTile,
                                           .has_peers = false};
  static constexpr KindOfProblem kDecoding{
      .name = "decoding",
      .products = {.of_head_dim = 1, .of_head_dim_v = 1},
      .outputs = "O",
      .few_sms = "With few SMs, the keys are divided into fewer parts",
      .wrong_on_few_sms = "it is right: something is wrong where the keys are divided into fewer parts",
      .has_peers = true};
  switch (kind) {
    case ProblemKind::forward:
      return kForward;
    case ProblemKind::backward:
      return kBackward;
    case ProblemKind::decoding:
      return kDecoding;
  }
  throw std::logic_error("a ProblemKind without a description");
}

}  // namespace flash_ladder
