// What `harness --debug` observes about one version that computes gradients, and its JSON form
// (harness/results/debug_gradients.schema.json).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "results/debug_report.h"
#include "results/result.h"

namespace flash_ladder {

/// How many elements of some matrix are wrong, and by how much.
struct Compared {
  double of_bound = 0;  // the largest |got - expected| / bound
  std::int64_t wrong = 0, compared = 0;
  // In order of batch, head, row, column. A row is a query, or a key of dK and dV. A column is a column of head_dim, or a key of P,
  // dP and dS.
  std::optional<WrongElement> first;
};

/// One matrix in the shown tile of queries and tile of keys. P, dP and dS stay inside the kernel. An output shows them if
/// the other operand of its product is one-hot: column q of dV is the row of P whose dO is one-hot at q.
struct SeenMatrix {
  std::string matrix;   // "P", "dP" or "dS"; "dV", "dK" or "dQ" for an output with the inputs as they are
  std::string through;  // the output that shows it; an output shows itself
  Compared values;
  std::optional<std::string> places;  // if something is wrong: which queries, and which keys or columns
  WrongElement shown = {};            // the first wrong element, or otherwise that of the shown query and key
};

/// A launch with only the first tiles of queries, or of keys.
struct GradientCut {
  std::string of;  // "queries": dV and dK are sums over these; "keys": dQ is
  std::int64_t tiles = 0, rows = 0;
  struct Gradient {
    std::string name;  // "dV", "dK" or "dQ"
    Compared values;
    std::vector<double> expected, got;  // [head_dim], of the shown key, or query; empty if it is not among the rows
  };
  std::vector<Gradient> gradients;  // empty if the kernel faulted
  bool faulted = false;
  std::int64_t findings = 0;  // of the virtual GPU, in this launch

  std::int64_t wrong() const;
  bool right() const { return !faulted && wrong() == 0 && findings == 0; }
};

/// The shown query with one key of the tile, with the inputs as they are.
struct QueryAndKey {
  std::int64_t key = 0;
  double S_expected = 0, P_expected = 0, dP_expected = 0, dS_expected = 0;
  // The kernel's; S is ln(P) + L. NaN: cannot be made visible.
  double S = 0, P = 0, dP = 0, dS = 0;
};

struct GradientReport {
  std::string kernel, name, config, device;
  AttentionProblem problem;
  std::string inputs;
  std::vector<std::string> also_right;  // other inputs for which dQ, dK and dV are right
  std::uint64_t seed = 0;
  int block_q = 0, block_kv = 0;

  // What is shown.
  std::int64_t batch = 0, head = 0, query_tile = 0, key_tile = 0, query = 0, key = 0;
  double scale = 0, L = 0, D = 0;  // of the scores, and of the query

  std::vector<GradientCut> cuts;  // of the queries, then of the keys; the last of each contains all tiles
  std::vector<SeenMatrix> matrices;
  std::vector<QueryAndKey> keys;          // of the tile
  std::optional<std::string> first_step;  // the first wrong step: "S", "P", "dP", "dS", "dV", "dK" or "dQ"
  std::optional<Diagnosis> diagnosis;
  std::vector<Finding> findings;
  std::vector<std::string> look_at;

  /// The first wrong cut; nullptr if there is none.
  const GradientCut* first_wrong() const;
  bool right() const;
};

/// Reading throws std::exception for anything that is not a GradientReport.
void to_json(nlohmann::json& json, const GradientReport& report);
void from_json(const nlohmann::json& json, GradientReport& report);

}  // namespace flash_ladder
