#include "results/result.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "json_members.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<Status, const char*>, 4> kStatusNames{{
    {Status::ok, "ok"},
    {Status::wrong, "wrong"},
    {Status::skipped, "skipped"},
    {Status::failed, "failed"},
}};

json number_or_null(const std::optional<double>& value) { return value ? number(*value) : json(nullptr); }

void read_number(const json& object, const char* member, std::optional<double>& value) {
  const auto found = object.find(member);
  if (found != object.end() && !found->is_null()) value = number(*found);
}

}  // namespace

json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error(fmt::format("'{}' is not a number; allowed beside numbers: nan, inf, -inf", text));
}

double positive_number(const json& value) {
  const double positive = number(value);
  if (!(positive > 0) || std::isinf(positive))
    throw std::runtime_error(fmt::format("{} where a number above 0 is expected", positive));
  return positive;
}

void to_json(json& json, const Milliseconds& ms) { json = {{"median", ms.median}, {"p10", ms.p10}, {"p90", ms.p90}}; }

void from_json(const json& json, Milliseconds& ms) {
  json.at("median").get_to(ms.median);
  json.at("p10").get_to(ms.p10);
  json.at("p90").get_to(ms.p90);
}

void to_json(json& json, const Load& load) {
  json = {{"sm_clock_mhz", known_or_null(load.sm_clock_mhz)}, {"power_watts", number_or_null(load.power_watts)}};
}

void from_json(const json& json, Load& load) {
  load = {};
  read_known(json, "sm_clock_mhz", load.sm_clock_mhz);
  read_number(json, "power_watts", load.power_watts);
}

void to_json(json& json, const StaticStudy& study) {
  json = {{"registers", study.registers},
          {"spill_bytes", study.spill_bytes},
          {"smem_bytes", study.smem_bytes},
          {"ctas_per_sm", study.ctas_per_sm},
          {"limited_by", study.limited_by},
          {"sass", known_or_null(study.sass)},
          {"hot_loop_sass", known_or_null(study.hot_loop_sass)},
          {"hot_loop_cold_sass", nullptr},
          {"sass_hash", known_or_null(study.sass_hash)}};
  if (!study.hot_loop_sass.empty()) json["hot_loop_cold_sass"] = study.hot_loop_cold_sass;  // {}: no cold blocks
}

void from_json(const json& json, StaticStudy& study) {
  study = {};
  json.at("registers").get_to(study.registers);
  json.at("spill_bytes").get_to(study.spill_bytes);
  json.at("smem_bytes").get_to(study.smem_bytes);
  json.at("ctas_per_sm").get_to(study.ctas_per_sm);
  json.at("limited_by").get_to(study.limited_by);
  read_known(json, "sass", study.sass);
  read_known(json, "hot_loop_sass", study.hot_loop_sass);
  read_known(json, "hot_loop_cold_sass", study.hot_loop_cold_sass);
  read_known(json, "sass_hash", study.sass_hash);
}

void to_json(json& json, const Mismatch& mismatch) {
  json = {{"batch", mismatch.batch},   {"head", mismatch.head},       {"row", mismatch.row},
          {"column", mismatch.column}, {"got", number(mismatch.got)}, {"expected", number(mismatch.expected)}};
}

void from_json(const json& json, Mismatch& mismatch) {
  json.at("batch").get_to(mismatch.batch);
  json.at("head").get_to(mismatch.head);
  json.at("row").get_to(mismatch.row);
  json.at("column").get_to(mismatch.column);
  mismatch.got = number(json.at("got"));
  mismatch.expected = number(json.at("expected"));
}

void to_json(json& json, const FragmentElement& element) {
  json = {{"warp", element.warp},
          {"lane", element.lane},
          {"mma_m", element.mma_m},
          {"mma_n", element.mma_n},
          {"register", element.reg}};
}

void from_json(const json& json, FragmentElement& element) {
  json.at("warp").get_to(element.warp);
  json.at("lane").get_to(element.lane);
  json.at("mma_m").get_to(element.mma_m);
  json.at("mma_n").get_to(element.mma_n);
  json.at("register").get_to(element.reg);
}

void to_json(json& json, const Experiment& experiment) {
  json = {{"name", experiment.name}, {"right", experiment.right}};
}

void from_json(const json& json, Experiment& experiment) {
  json.at("name").get_to(experiment.name);
  json.at("right").get_to(experiment.right);
}

void to_json(json& json, const Diagnosis& diagnosis) {
  json = {{"sentences", diagnosis.sentences},
          {"suggests", diagnosis.suggests},
          {"first", known_or_null(diagnosis.first)},
          {"experiments", diagnosis.experiments}};
}

void from_json(const json& json, Diagnosis& diagnosis) {
  diagnosis = {};
  json.at("sentences").get_to(diagnosis.sentences);
  json.at("suggests").get_to(diagnosis.suggests);
  read_known(json, "first", diagnosis.first);
  json.at("experiments").get_to(diagnosis.experiments);
}

void to_json(json& json, const LineCounters& line) {
  json = {{"kernel", line.kernel},
          {"position", line.position},
          {"counters", counters_to_json(line.counters, Zeros::left_out)}};
}

void from_json(const json& json, LineCounters& line) {
  json.at("kernel").get_to(line.kernel);
  json.at("position").get_to(line.position);
  line.counters = counters_from_json(json.at("counters"), Zeros::left_out);
}

void to_json(json& json, const Finding& finding) {
  json = {{"kind", finding.kind},
          {"message", finding.message},
          {"kernel", known_or_null(finding.kernel)},
          {"position", finding.position},
          {"cta", known_or_null(finding.cta)},
          {"warp", known_or_null(finding.warp)},
          {"lane", known_or_null(finding.lane)},
          {"address", known_or_null(finding.address)},
          {"other_position", known_or_null(finding.other_position)},
          {"waits", finding.waits},
          {"count", finding.count},
          {"text", finding.text}};
}

void from_json(const json& json, Finding& finding) {
  finding = {};
  json.at("kind").get_to(finding.kind);
  json.at("message").get_to(finding.message);
  read_known(json, "kernel", finding.kernel);
  json.at("position").get_to(finding.position);
  read_known(json, "cta", finding.cta);
  read_known(json, "warp", finding.warp);
  read_known(json, "lane", finding.lane);
  read_known(json, "address", finding.address);
  read_known(json, "other_position", finding.other_position);
  json.at("waits").get_to(finding.waits);
  json.at("count").get_to(finding.count);
  json.at("text").get_to(finding.text);
}

std::string to_string(Status status) {
  for (const auto& [value, name] : kStatusNames)
    if (value == status) return name;
  throw std::logic_error("a Status without a name");
}

std::optional<Status> status_from_string(const std::string& text) {
  for (const auto& [value, name] : kStatusNames)
    if (text == name) return value;
  return std::nullopt;
}

std::string label(const Result& result) {
  return result.kernel == result.name ? result.name : fmt::format("{}_{}", result.kernel, result.name);
}

void to_json(json& json, const Result& result) {
  json = {{"kernel", result.kernel},
          {"name", result.name},
          {"config", known_or_null(result.config)},
          {"device", known_or_null(result.device)},
          {"problem", result.problem},
          {"status", to_string(result.status)},
          {"reason", known_or_null(result.reason)},
          {"correct", known_or_null(result.correct)},
          {"max_abs_error", number_or_null(result.max_abs_error)},
          {"relative_error", number_or_null(result.relative_error)},
          {"ms", known_or_null(result.ms)},
          {"tflops", number_or_null(result.tflops)},
          {"counters", nullptr},
          {"findings", result.findings},
          {"static", known_or_null(result.static_study)}};
  if (result.data != Distribution::normal) json["data"] = result.data;  // keeps older files unchanged
  if (result.tflops && is_decoding(result.problem)) json["kv_gb_per_s"] = kv_gb_per_s(result.problem, *result.tflops);
  if (result.counters) json["counters"] = counters_to_json(*result.counters, Zeros::kept);
  if (!result.checked.empty()) json["checked"] = result.checked;
  if (result.load) json["load"] = *result.load;
  if (!result.lines.empty()) json["lines"] = result.lines;
  if (!result.roles.empty()) json["roles"] = roles_to_json(result.roles);
  if (!result.ptx_hash.empty()) json["ptx_hash"] = result.ptx_hash;
  // Only a wrong result has these.
  if (!result.mismatches.empty()) json["mismatches"] = result.mismatches;
  if (!result.tile_map.empty()) json["tile_map"] = result.tile_map;
  if (result.diagnosis) json["diagnosis"] = *result.diagnosis;
  if (!result.findings.empty()) {
    json["findings_kinds"] = result.findings_kinds;
    json["findings_total"] = result.findings_total;
  }
}

void from_json(const json& json, Result& result) {
  result = {};
  json.at("kernel").get_to(result.kernel);
  if (result.kernel.empty()) throw std::runtime_error("\"kernel\" is empty");
  json.at("name").get_to(result.name);
  read_known(json, "config", result.config);
  read_known(json, "device", result.device);
  json.at("problem").get_to(result.problem);
  read_known(json, "data", result.data);
  const auto status_name = json.at("status").get<std::string>();
  const auto status = status_from_string(status_name);
  if (!status) throw std::runtime_error(fmt::format("status '{}' is unknown", status_name));
  result.status = *status;
  read_known(json, "reason", result.reason);
  read_known(json, "checked", result.checked);
  read_known(json, "correct", result.correct);
  read_number(json, "max_abs_error", result.max_abs_error);
  read_number(json, "relative_error", result.relative_error);
  read_known(json, "mismatches", result.mismatches);
  read_known(json, "tile_map", result.tile_map);
  read_known(json, "diagnosis", result.diagnosis);
  read_known(json, "ms", result.ms);
  if (const auto tflops = json.find("tflops"); tflops != json.end() && !tflops->is_null())
    result.tflops = positive_number(*tflops);
  read_known(json, "load", result.load);
  if (const auto counters = json.find("counters"); counters != json.end() && !counters->is_null())
    result.counters = counters_from_json(*counters, Zeros::kept);
  read_known(json, "lines", result.lines);
  if (const auto roles = json.find("roles"); roles != json.end()) result.roles = roles_from_json(*roles);
  read_known(json, "ptx_hash", result.ptx_hash);
  read_known(json, "findings", result.findings);
  read_known(json, "findings_kinds", result.findings_kinds);
  read_known(json, "findings_total", result.findings_total);
  read_known(json, "static", result.static_study);
}

}  // namespace flash_ladder
