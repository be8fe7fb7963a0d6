#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "app/card/gradient_places.h"
#include "app/card/hints.h"

namespace flash_ladder {
namespace {

class GradientPlaces {
 public:
  explicit GradientPlaces(const GradientReport& report) : report_(report) {}

  std::vector<Place> find() {
    if (report_.diagnosis)
      for (const std::string& name : report_.diagnosis->suggests) add_suggested(name);
    // A known mistake says more than the step.
    if (places_.empty() && report_.first_step) add_step(*report_.first_step);
    return std::move(places_);
  }

 private:
  void add(std::initializer_list<Place> more) {
    for (const Place& place : more)
      if (std::ranges::find(places_, place) == places_.end()) places_.push_back(place);
  }

  bool is_wrong(std::string_view matrix, std::string_view through) const {
    return std::ranges::any_of(report_.matrices, [&](const SeenMatrix& seen) {
      return seen.matrix == matrix && seen.through == through && seen.values.wrong > 0;
    });
  }

  void add_store(const std::string& gradient) {
    using namespace gradient_places;
    if (gradient == "dQ")
      add({convert_dQ});
    else
      add({store_rows, store_dK_and_dV});
  }

  void add_product(const std::string& gradient) {
    using namespace gradient_places;
    if (gradient == "dQ")
      add({dQ, start_dQ});
    else
      add({multiply_transposed, gradient == "dV" ? dV : dK});
  }

  void add_suggested(const std::string& name) {
    using namespace gradient_places;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const std::string gradient = name.substr(0, 2);
    if (has("query_tile"))
      add({loop, next_tile, copy_queries});
    else if (has("_scaled") || has("_negated"))
      add_store(gradient);
    else if (has("_takes_") && gradient != "dP")
      add_product(gradient);
    else if (has("tile") && (gradient == "dQ" || gradient == "dK" || gradient == "dV"))
      add({loop, next_tile, copy_queries, loop_of_dQ, dQ});
    else if (has("dP_takes"))
      add({S, dP, copy_keys});
    if (has("of_first_tile")) add({copy_queries});
    if (name.starts_with("L_") || has("scale_left") || has("log2e")) add({P, exponential});
    if (name.starts_with("D_") || name.starts_with("P_")) add({dS, D});
  }

  void add_step(const std::string& step) {
    using namespace gradient_places;
    if (step == "S") add({S, multiply_rows, load_A, load_B_transposed, P});
    if (step == "dP") add({dP, multiply_rows, load_A, load_B_transposed, copy_tile, copy_keys, pack});
    if (step == "dS") add({dS, dS_of_dQ, D, diagonal, pack, copy_queries});
    if (step == "P" && !is_wrong("dP", "dK")) add({P, exponential, copy_queries, copy_floats});
    const bool shared = step == "P" && is_wrong("dP", "dK");  // every matrix is wrong
    const GradientCut* wrong = report_.first_wrong();
    if (shared && wrong != nullptr && wrong->tiles > 1) add({copy_queries, loop, next_tile});
    if (shared && (wrong == nullptr || wrong->tiles == 1))
      add({pack, to_16_bits, multiply_rows, load_A, load_B_transposed, load_B, column_pair, copy_tile, copy_keys,
           swizzle, swizzle_of_fragment, visible});
    if (step != "dV" && step != "dK" && step != "dQ") return;
    // Only the sum over the tiles, or the product itself.
    const bool product_is_wrong = is_wrong("P", step) || is_wrong("dP", step) || is_wrong("dS", step);
    add_product(step);
    add_store(step);
    if (product_is_wrong && step != "dQ") add({load_B, column_pair});
    if (step == "dQ") add({store_dS, load_dS, load_B, column_pair, sums_of_dQ, S_of_dQ, dS_of_dQ, copy_keys_of_dQ});
    if (!product_is_wrong) add({step == "dQ" ? loop_of_dQ : loop, next_tile});
    add({visible, swizzle});
  }

  const GradientReport& report_;
  std::vector<Place> places_;
};

}  // namespace

Hints hints_from(const GradientReport& report, const Version& version, const std::filesystem::path& source_tree) {
  return hints_at(GradientPlaces(report).find(), version, source_tree);
}

}  // namespace flash_ladder
