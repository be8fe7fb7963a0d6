#include "worker/diagnosis/gradient_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "worker/diagnosis/gradient_mistakes.h"
#include "worker/diagnosis/pattern.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kMaxNamedMistakes = 3;  // in the sentence; the JSON lists all

// Whether each matrix is wrong through each output that shows it.
class Views {
 public:
  explicit Views(const std::vector<SeenMatrix>& matrices) {
    for (const SeenMatrix& seen : matrices) wrong_[{seen.matrix, seen.through}] = seen.values.wrong > 0;
  }

  /// False if the output does not show the matrix.
  bool wrong(const char* matrix, const char* through) const {
    const auto found = wrong_.find({matrix, through});
    return found != wrong_.end() && found->second;
  }
  /// Through every output that shows it, of which there is at least one.
  bool wrong_everywhere(const char* matrix) const {
    bool any = false;
    for (const auto& [at, is_wrong] : wrong_) {
      if (at.first != matrix) continue;
      if (!is_wrong) return false;
      any = true;
    }
    return any;
  }

 private:
  std::map<std::pair<std::string, std::string>, bool> wrong_;
};

constexpr const char* formula_of(std::string_view output) {
  return output == "dV" ? "dV = Pᵀ dO" : output == "dK" ? "dK = scale · dSᵀ Q" : "dQ = scale · dS K";
}

// P, dP and dS are right, but not every gradient.
std::optional<GradientVerdict> judge_output(const Views& views, const char* output) {
  const bool P = views.wrong("P", output), dP = views.wrong("dP", output), dS = views.wrong("dS", output);
  if (dP || (P && output == std::string_view("dV")))
    return GradientVerdict{
        output,
        fmt::format("{} {} right, but {} does not show {}. Suggests the product {}: its operands, or the store.",
                    dP ? "P and dP" : "P", dP ? "are" : "is", output, dP ? "them" : "it", formula_of(output))};
  if (P)
    return GradientVerdict{output,
                           fmt::format("The P from which {} is computed is wrong, but dP is right there, and P is "
                                       "right for another gradient. Suggests the P of {} alone: its L.",
                                       output, output)};
  if (dS)
    return GradientVerdict{output, fmt::format("P and dP are right, and dS is wrong only for {}. Suggests the dS of {} "
                                               "alone: its D.",
                                               output, output)};
  if (views.wrong(output, output))
    return GradientVerdict{
        output,
        fmt::format("P, dP and dS are right in this tile, but {} is wrong. Suggests the sum over the tiles, the "
                    "other operand of {}, or the store.",
                    output, formula_of(output))};
  return std::nullopt;
}

}  // namespace

std::optional<GradientVerdict> judge_matrices(const std::vector<SeenMatrix>& matrices,
                                              const std::function<std::optional<bool>()>& P_is_wrong_where_S_is_0) {
  const Views views(matrices);
  const bool dP = views.wrong_everywhere("dP"), dS = views.wrong_everywhere("dS");
  if (views.wrong_everywhere("P") && dP)
    return GradientVerdict{
        "P",
        "P and dP are wrong through every output. Suggests something that all products use: the copy of a "
        "tile, its layout in shared memory, or the conversion of P and dS to 16 bits."};
  if (views.wrong_everywhere("P")) {
    const auto also_without_S = P_is_wrong_where_S_is_0();
    if (also_without_S && !*also_without_S)
      return GradientVerdict{
          "S", "P is wrong, but where S is 0 it is right. Suggests S = Q Kᵀ: its operands, or its scale."};
    return GradientVerdict{
        "P", "P is wrong through every output, even where S is 0. Suggests P = exp(S - L): the exponential, or L."};
  }
  if (dP && views.wrong("P", "dK") && views.wrong("P", "dQ"))
    return GradientVerdict{
        "dP",
        "P is right in dV, but in dK and dQ neither dP is right nor P, which is a dS with dP = 1. Suggests "
        "dP = dO Vᵀ, or dS on its way to both products: its conversion to 16 bits."};
  if (dP)
    return GradientVerdict{
        "dP", "P is right, but dP is wrong through both outputs. Suggests dP = dO Vᵀ: the operands dO and V."};
  if (dS)
    return GradientVerdict{"dS",
                           "P and dP are right, but dS is wrong. Suggests dS = P ∘ (dP - D), or D = rowsum(dO ∘ O)."};
  for (const char* output : {"dV", "dK", "dQ"})
    if (auto verdict = judge_output(views, output)) return verdict;
  return std::nullopt;
}

std::optional<std::string> describe_start(const std::vector<GradientCut>& cuts, const char* of) {
  std::optional<std::int64_t> right, wrong;
  bool faults = false;
  std::int64_t count = 0;
  std::vector<std::string> names;
  for (const GradientCut& cut : cuts) {
    if (cut.of != of) continue;
    ++count;
    if (!wrong && cut.right()) right = cut.tiles;
    if (wrong || cut.right()) continue;
    wrong = cut.tiles;
    faults = cut.faulted;
    for (const auto& gradient : cut.gradients)
      if (gradient.values.wrong > 0) names.push_back(gradient.name);
  }
  if (!wrong || count < 2 || (names.empty() && !faults)) return std::nullopt;
  const std::string which = faults ? " (a fault)" : fmt::format(" ({})", fmt::join(names, " and "));
  const std::string label = of == std::string_view("queries") ? "Queries" : "Keys";
  if (!right) return fmt::format("{} truncated: the first tile of {} alone is wrong already{}.", label, of, which);
  return fmt::format("{} truncated: right with {} tile{} of {}, wrong with {}{}.", label, *right,
                     *right == 1 ? "" : "s", of, *wrong, which);
}

Diagnosis describe_wrong_gradients(const WrongGradients& wrong, const Tiling& tiling, const Progress& progress) {
  Diagnosis diagnosis;
  const auto mistakes = gradient_mistakes_that_explain(wrong.inputs, wrong.references, wrong.outputs, tiling.block_q,
                                                       tiling.block_kv, progress);
  std::vector<std::string> texts;
  for (const GradientMistake& mistake : mistakes) {
    diagnosis.suggests.push_back(mistake.name);
    if (texts.size() < kMaxNamedMistakes) texts.push_back(mistake.text);
  }
  if (!mistakes.empty())
    diagnosis.sentences.push_back(fmt::format(
        "Suggests: {}{}. Computed with that mistake, all wrong rows that were tried come out as here.",
        fmt::join(texts, "; or "),
        mistakes.size() > kMaxNamedMistakes ? fmt::format("; or {} more", mistakes.size() - kMaxNamedMistakes) : ""));
  for (std::size_t which = wrong.references.size(); which-- > 0;) {
    const Reference& reference = wrong.references[which];
    const Tiling of_rows{.block_q = which == 0 ? tiling.block_q : tiling.block_kv, .num_warps = tiling.num_warps};
    const WrongElements elements = find_wrong(reference, wrong.outputs[which], of_rows);
    if (elements.wrong == 0) continue;
    std::string sentence =
        fmt::format("{}: {}", kGradientNames[which],
                    describe_places(elements, reference.problem, of_rows, which == 0 ? "query" : "key"));
    if (mistakes.empty())
      if (const auto factor = describe_factor(reference, wrong.outputs[which], elements, /*is_gradient=*/true))
        sentence += " " + *factor;
    diagnosis.sentences.push_back(std::move(sentence));
  }
  return diagnosis;
}

}  // namespace flash_ladder
