#include "results/gradient_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "json_members.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

json array_of(const std::vector<double>& values) {
  json array = json::array();
  for (const double value : values) array.push_back(number(value));
  return array;
}

std::vector<double> values_of(const json& array) {
  std::vector<double> values;
  for (const json& value : array) values.push_back(number(value));
  return values;
}

// Unlike in read_known(), a missing member is an error.
template <typename T>
void read_or_null(const json& object, const char* member, std::optional<T>& value) {
  const json& found = object.at(member);
  value.reset();
  if (!found.is_null()) value = found.get<T>();
}

}  // namespace

// ---- The parts ----

void to_json(json& json, const Compared& values) {
  json = {{"of_bound", number(values.of_bound)},
          {"wrong", values.wrong},
          {"compared", values.compared},
          {"first", known_or_null(values.first)}};
}

void from_json(const json& json, Compared& values) {
  values.of_bound = number(json.at("of_bound"));
  json.at("wrong").get_to(values.wrong);
  json.at("compared").get_to(values.compared);
  read_or_null(json, "first", values.first);
}

void to_json(json& json, const SeenMatrix& seen) {
  json = {{"matrix", seen.matrix},
          {"through", seen.through},
          {"values", seen.values},
          {"places", known_or_null(seen.places)},
          {"shown", seen.shown}};
}

void from_json(const json& json, SeenMatrix& seen) {
  json.at("matrix").get_to(seen.matrix);
  json.at("through").get_to(seen.through);
  json.at("values").get_to(seen.values);
  read_or_null(json, "places", seen.places);
  json.at("shown").get_to(seen.shown);
}

void to_json(json& json, const GradientCut::Gradient& gradient) {
  json = {{"name", gradient.name},
          {"values", gradient.values},
          {"expected", array_of(gradient.expected)},
          {"got", array_of(gradient.got)}};
}

void from_json(const json& json, GradientCut::Gradient& gradient) {
  json.at("name").get_to(gradient.name);
  json.at("values").get_to(gradient.values);
  gradient.expected = values_of(json.at("expected"));
  gradient.got = values_of(json.at("got"));
}

void to_json(json& json, const GradientCut& cut) {
  json = {{"of", cut.of},           {"tiles", cut.tiles},      {"rows", cut.rows}, {"gradients", cut.gradients},
          {"faulted", cut.faulted}, {"findings", cut.findings}};
}

void from_json(const json& json, GradientCut& cut) {
  json.at("of").get_to(cut.of);
  json.at("tiles").get_to(cut.tiles);
  json.at("rows").get_to(cut.rows);
  json.at("gradients").get_to(cut.gradients);
  json.at("faulted").get_to(cut.faulted);
  json.at("findings").get_to(cut.findings);
}

void to_json(json& json, const QueryAndKey& pair) {
  json = {{"key", pair.key},       {"S_expected", number(pair.S_expected)},
          {"S", number(pair.S)},   {"P_expected", number(pair.P_expected)},
          {"P", number(pair.P)},   {"dP_expected", number(pair.dP_expected)},
          {"dP", number(pair.dP)}, {"dS_expected", number(pair.dS_expected)},
          {"dS", number(pair.dS)}};
}

void from_json(const json& json, QueryAndKey& pair) {
  json.at("key").get_to(pair.key);
  pair.S_expected = number(json.at("S_expected"));
  pair.S = number(json.at("S"));
  pair.P_expected = number(json.at("P_expected"));
  pair.P = number(json.at("P"));
  pair.dP_expected = number(json.at("dP_expected"));
  pair.dP = number(json.at("dP"));
  pair.dS_expected = number(json.at("dS_expected"));
  pair.dS = number(json.at("dS"));
}

// ---- The whole ----

std::int64_t GradientCut::wrong() const {
  const auto add = [](std::int64_t sum, const Gradient& gradient) { return sum + gradient.values.wrong; };
  return std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0}, add);
}

const GradientCut* GradientReport::first_wrong() const {
  const auto found = std::ranges::find_if(cuts, [](const GradientCut& cut) { return !cut.right(); });
  return found == cuts.end() ? nullptr : &*found;
}

bool GradientReport::right() const { return first_wrong() == nullptr && findings.empty() && !first_step; }

void to_json(json& json, const GradientReport& report) {
  json = {{"kernel", report.kernel},
          {"name", report.name},
          {"config", report.config},
          {"device", report.device},
          {"problem", report.problem},
          {"inputs", report.inputs},
          {"also_right", report.also_right},
          {"seed", report.seed},
          {"block_q", report.block_q},
          {"block_kv", report.block_kv},
          {"tile",
           {{"batch", report.batch},
            {"head", report.head},
            {"query_tile", report.query_tile},
            {"key_tile", report.key_tile},
            {"query", report.query},
            {"key", report.key},
            {"scale", report.scale},
            {"L", number(report.L)},
            {"D", number(report.D)}}},
          {"right", report.right()},
          {"cuts", report.cuts},
          {"matrices", report.matrices},
          {"keys", report.keys},
          {"first_step", known_or_null(report.first_step)},
          {"diagnosis", known_or_null(report.diagnosis)},
          {"findings", report.findings},
          {"look_at", report.look_at}};
}

void from_json(const json& json, GradientReport& report) {
  report = {};
  json.at("kernel").get_to(report.kernel);
  json.at("name").get_to(report.name);
  json.at("config").get_to(report.config);
  json.at("device").get_to(report.device);
  json.at("problem").get_to(report.problem);
  json.at("inputs").get_to(report.inputs);
  json.at("also_right").get_to(report.also_right);
  json.at("seed").get_to(report.seed);
  json.at("block_q").get_to(report.block_q);
  json.at("block_kv").get_to(report.block_kv);
  const auto& tile = json.at("tile");
  tile.at("batch").get_to(report.batch);
  tile.at("head").get_to(report.head);
  tile.at("query_tile").get_to(report.query_tile);
  tile.at("key_tile").get_to(report.key_tile);
  tile.at("query").get_to(report.query);
  tile.at("key").get_to(report.key);
  tile.at("scale").get_to(report.scale);
  report.L = number(tile.at("L"));
  report.D = number(tile.at("D"));
  json.at("cuts").get_to(report.cuts);
  json.at("matrices").get_to(report.matrices);
  json.at("keys").get_to(report.keys);
  read_or_null(json, "first_step", report.first_step);
  read_or_null(json, "diagnosis", report.diagnosis);
  json.at("findings").get_to(report.findings);
  json.at("look_at").get_to(report.look_at);
}

}  // namespace flash_ladder
