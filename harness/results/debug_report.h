// What `harness --debug` observes about one version, and its JSON form (harness/results/debug.schema.json).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "problem/problem.h"
#include "results/result.h"

namespace flash_ladder {

/// A wrong element of O or of P, and the thread that holds it.
struct WrongElement {
  std::int64_t batch, head, row;
  std::int64_t column;  // column of head_dim; for P the key, counted within its K/V tile
  double got, expected;
  double bound;                           // how far from `expected` it may be
  std::optional<FragmentElement> holder;  // nullopt if the version has no fragments
};

/// A launch with only the first K/V tiles: O as it is after them. For the row that is shown also the expected values,
/// computed with the recurrences of scripts/blockwise_attention.py in float64.
struct Cut {
  std::int64_t tiles = 0, keys = 0;
  double m = 0, r = 0, l = 0;         // of the row: its maximum, the rescaling factor of the earlier sum, its sum
  std::vector<double> O_expected, O;  // [head_dim], of the row, divided by l; O is empty if the kernel faulted
  double of_bound = 0;                // over all compared elements: the largest |got - expected| / bound
  std::int64_t wrong = 0, compared = 0;
  std::optional<WrongElement> first;  // in order of batch, head, row, column
  bool faulted = false;
  std::int64_t findings = 0;  // of the virtual GPU, in this launch

  bool right() const { return !faulted && wrong == 0 && findings == 0; }
};

/// P of the cut's last K/V tile, divided by l as O is: V is one-hot there and 0 elsewhere, so column c of O is key c.
struct SeenP {
  std::int64_t tile = 0, first_key = 0;
  std::vector<double> P_expected, P;  // [keys of the tile], of the row; P is empty if the kernel faulted
  std::vector<double> S_expected;     // [keys of the tile], of the row, scaled
  std::int64_t wrong = 0, compared = 0;
  std::optional<WrongElement> first;
  std::optional<std::string> places;  // if something is wrong: which rows and keys
};

/// Whether each element of a K/V tile is where it belongs: S with one-hot Q and V shows K, O with one-hot P reveals V.
struct SeenLayout {
  std::string tensor;  // "K" or "V"
  std::int64_t elements = 0, wrong = 0;
  std::optional<std::string> text;  // if something is wrong: which elements, and what is there instead
  // For the first wrong element of the tile: which thread should hold it as part of a fragment B; nullopt without
  // fragments.
  struct Operand {
    std::int64_t key, column;           // counted from the first key of all
    int lane, mma_n, mma_k, reg, half;  // K_rmem or V_rmem: register B[reg], its lower or upper 16 bits
  };
  std::optional<Operand> first;
};

struct DebugReport {
  std::string kernel, name, config, device;
  AttentionProblem problem;
  std::string inputs;                   // the inputs that are shown: "normal"
  std::vector<std::string> also_right;  // other inputs for which the output is right, with all keys
  std::uint64_t seed = 0;
  int block_q = 0, block_kv = 0, step_kv = 0;

  // The row that is shown, and its inputs, as four hexadecimal digits per element, so that anyone can recompute it.
  std::int64_t batch = 0, head = 0, row = 0;
  std::optional<FragmentElement> holder;  // of its first column
  double scale = 0;                       // scale of the scores
  std::string Q;                          // [head_dim]
  std::vector<std::string> K, V;          // [seq_len_kv] of [head_dim]

  std::vector<Cut> cuts;  // in order of tiles; the last contains all of them
  std::optional<SeenP> P;
  std::vector<SeenLayout> layouts;
  std::optional<Diagnosis> diagnosis;  // if an output is wrong
  std::vector<Finding> findings;       // of the virtual GPU, the first few
  std::vector<std::string>
      look_at;  // lines of the source in which a mistake like this one could be: "kernels/07_ldmatrix.cu:74"

  /// The first wrong cut; nullptr if there is none.
  const Cut* first_wrong() const;
  /// Whether nothing at all was wrong.
  bool right() const;
};

void to_json(nlohmann::json& json, const WrongElement& element);
void from_json(const nlohmann::json& json, WrongElement& element);
/// Reading throws std::exception for anything that is not a DebugReport.
void to_json(nlohmann::json& json, const DebugReport& report);
void from_json(const nlohmann::json& json, DebugReport& report);

}  // namespace flash_ladder
