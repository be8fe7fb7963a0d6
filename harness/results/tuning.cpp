#include "results/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "json_members.h"
#include "results/document.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

constexpr DocumentKind kTuning{"tuning", kTuningSchema, "delete it and measure again with --tune"};

json to_document(const TunedConfiguration& tuned) {
  return {{"config", tuned.config}, {"tflops", tuned.tflops}, {"ms", tuned.ms}};
}

TunedConfiguration tuned_configuration(const json& object) {
  return {.config = object.at("config"), .tflops = object.at("tflops"), .ms = object.at("ms").get<Milliseconds>()};
}

json to_document(const TuningEntry& entry) {
  json ranking = json::array();
  for (const TunedConfiguration& tuned : entry.ranking) ranking.push_back(to_document(tuned));
  return {{"kernel", entry.kernel},       {"name", entry.name},       {"problem", entry.problem},
          {"code_hash", entry.code_hash}, {"toolkit", entry.toolkit}, {"driver", known_or_null(entry.driver)},
          {"date", entry.date},           {"ranking", ranking}};
}

TuningEntry tuning_entry(const json& object) {
  TuningEntry entry;
  object.at("kernel").get_to(entry.kernel);
  object.at("name").get_to(entry.name);
  object.at("problem").get_to(entry.problem);
  object.at("code_hash").get_to(entry.code_hash);
  object.at("toolkit").get_to(entry.toolkit);
  read_known(object, "driver", entry.driver);
  object.at("date").get_to(entry.date);
  for (const json& tuned : object.at("ranking")) entry.ranking.push_back(tuned_configuration(tuned));
  if (entry.ranking.empty()) throw std::runtime_error("a ranking is empty");
  return entry;
}

// Digits come before letters, so extensions come last.
bool comes_before(const TuningEntry& a, const TuningEntry& b) {
  return a.kernel != b.kernel ? a.kernel < b.kernel : comes_before(a.problem, b.problem);
}

}  // namespace

const TuningEntry* Tuning::find(const std::string& kernel, const AttentionProblem& problem) const {
  for (const TuningEntry& entry : entries)
    if (entry.kernel == kernel && entry.problem == problem) return &entry;
  return nullptr;
}

void Tuning::put(TuningEntry entry) {
  std::erase_if(entries, [&](const TuningEntry& other) {
    return other.kernel == entry.kernel && other.problem == entry.problem;
  });
  const auto after = std::find_if(entries.begin(), entries.end(),
                                  [&](const TuningEntry& other) { return comes_before(entry, other); });
  entries.insert(after, std::move(entry));
}

std::optional<Tuning> read_tuning(const std::filesystem::path& path, const std::string& device) {
  const auto document = read_document(kTuning, path);
  if (!document) return std::nullopt;
  Tuning tuning;
  try {
    document->at("device").get_to(tuning.device);
    for (const json& entry : document->at("entries")) tuning.entries.push_back(tuning_entry(entry));
  } catch (const std::exception& error) {
    refuse_form(kTuning, path, error);
  }
  if (tuning.device != device)
    refuse_document(kTuning, path, fmt::format("it is for another device, {}, not for {}", tuning.device, device));
  return tuning;
}

void write_tuning(const std::filesystem::path& path, const Tuning& tuning) {
  json entries = json::array();
  for (const TuningEntry& entry : tuning.entries) entries.push_back(to_document(entry));
  write_document(path, {{"schema", kTuningSchema}, {"device", tuning.device}, {"entries", entries}}, "entries");
}

}  // namespace flash_ladder
