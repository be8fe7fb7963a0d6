#include "results/peers.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "json_members.h"
#include "results/document.h"
#include "results/result.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

constexpr DocumentKind kPeers{"file of peers", kPeersSchema, "measure it again with scripts/peers"};

std::vector<PeerResult> results_of(const json& entry) {
  std::vector<PeerResult> results;
  for (const json& result : entry.at("results"))
    results.push_back({result.at("batch"), result.at("seq_len"), positive_number(result.at("tflops"))});
  return results;
}

Regime regime_of(const std::string& name, const json& object) {
  Regime regime{.name = name, .date = "", .versions = {}, .peers = {}};
  if (object.contains("run")) read_known(object.at("run"), "date", regime.date);
  for (const json& entry : object.at("versions")) {
    MeasuredVersion version{
        .kernel = entry.at("kernel"), .config = "", .code_hash = "", .date = regime.date, .results = results_of(entry)};
    read_known(entry, "config", version.config);
    read_known(entry, "code_hash", version.code_hash);
    if (entry.contains("date")) entry.at("date").get_to(version.date);
    regime.versions.push_back(std::move(version));
  }
  for (const json& entry : object.at("peers"))
    regime.peers.push_back({.name = entry.at("name"), .results = results_of(entry)});
  return regime;
}

}  // namespace

std::optional<PeersFile> read_peers(const std::filesystem::path& path) {
  const auto document = read_document(kPeers, path);
  if (!document) return std::nullopt;
  try {
    PeersFile file;
    const json& problem = document->at("problem");
    problem.at("heads").get_to(file.problem.heads);
    problem.at("head_dim").get_to(file.problem.head_dim);
    problem.at("causal").get_to(file.problem.causal);
    const auto dtype = dtype_from_string(problem.at("dtype"));
    if (!dtype) throw std::runtime_error("its dtype is unknown");
    file.problem.dtype = *dtype;
    const json& regimes = document->at("regimes");
    for (const char* name : {"sustained", "interleaved"})
      if (regimes.contains(name)) file.regimes.push_back(regime_of(name, regimes.at(name)));
    return file;
  } catch (const std::exception& error) {
    refuse_form(kPeers, path, error);
  }
}

}  // namespace flash_ladder
