// What the matrices that a backward pass showed say about the first wrong step, in words.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "results/gradient_report.h"
#include "worker/diagnosis/gradient_steps.h"

namespace flash_ladder {

struct GradientVerdict {
  std::string step;      // "S", "P", "dP", "dS", "dV", "dK" or "dQ"
  std::string sentence;  // why it is the first wrong one, and what that suggests
};

/// A matrix is right if one output shows it right; then another output that shows it wrong is wrong itself. nullopt if nothing is
/// wrong. `P_is_wrong_where_S_is_0` launches once more; nullopt: it cannot tell.
std::optional<GradientVerdict> judge_matrices(const std::vector<SeenMatrix>& matrices,
                                              const std::function<std::optional<bool>()>& P_is_wrong_where_S_is_0);

/// One sentence: with how many tiles of queries or of keys the gradients are right, and with how many they are wrong. nullopt if
/// nothing is wrong, or if there is only one tile.
std::optional<std::string> describe_start(const std::vector<GradientCut>& cuts, const char* of);

/// The known mistakes that produce these gradients, and where and by what factor they are wrong. No sentence if nothing is wrong.
Diagnosis describe_wrong_gradients(const WrongGradients& wrong, const Tiling& tiling, const Progress& progress = {});

}  // namespace flash_ladder
