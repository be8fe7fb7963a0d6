#include "results/debug_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "json_members.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

json numbers(const std::vector<double>& values) {
  json array = json::array();
  for (const double value : values) array.push_back(number(value));
  return array;
}

std::vector<double> numbers(const json& array) {
  std::vector<double> values;
  for (const json& value : array) values.push_back(number(value));
  return values;
}

// Unlike in read_known(), a missing member is an error.
template <typename T>
void read(const json& object, const char* member, std::optional<T>& value) {
  const json& found = object.at(member);
  value.reset();
  if (!found.is_null()) value = found.get<T>();
}

}  // namespace

// ---- The parts ----

void to_json(json& json, const WrongElement& element) {
  json = {{"batch", element.batch},
          {"head", element.head},
          {"row", element.row},
          {"column", element.column},
          {"got", number(element.got)},
          {"expected", number(element.expected)},
          {"bound", number(element.bound)},
          {"holder", known_or_null(element.holder)}};
}

void from_json(const json& json, WrongElement& element) {
  json.at("batch").get_to(element.batch);
  json.at("head").get_to(element.head);
  json.at("row").get_to(element.row);
  json.at("column").get_to(element.column);
  element.got = number(json.at("got"));
  element.expected = number(json.at("expected"));
  element.bound = number(json.at("bound"));
  read(json, "holder", element.holder);
}

void to_json(json& json, const Cut& cut) {
  json = {{"tiles", cut.tiles},
          {"keys", cut.keys},
          {"m", number(cut.m)},
          {"r", number(cut.r)},
          {"l", number(cut.l)},
          {"O_expected", numbers(cut.O_expected)},
          {"O", numbers(cut.O)},
          {"of_bound", number(cut.of_bound)},
          {"wrong", cut.wrong},
          {"compared", cut.compared},
          {"first", known_or_null(cut.first)},
          {"faulted", cut.faulted},
          {"findings", cut.findings}};
}

void from_json(const json& json, Cut& cut) {
  json.at("tiles").get_to(cut.tiles);
  json.at("keys").get_to(cut.keys);
  cut.m = number(json.at("m"));
  cut.r = number(json.at("r"));
  cut.l = number(json.at("l"));
  cut.O_expected = numbers(json.at("O_expected"));
  cut.O = numbers(json.at("O"));
  cut.of_bound = number(json.at("of_bound"));
  json.at("wrong").get_to(cut.wrong);
  json.at("compared").get_to(cut.compared);
  read(json, "first", cut.first);
  json.at("faulted").get_to(cut.faulted);
  json.at("findings").get_to(cut.findings);
}

void to_json(json& json, const SeenP& seen) {
  json = {{"tile", seen.tile},
          {"first_key", seen.first_key},
          {"P_expected", numbers(seen.P_expected)},
          {"P", numbers(seen.P)},
          {"S_expected", numbers(seen.S_expected)},
          {"wrong", seen.wrong},
          {"compared", seen.compared},
          {"first", known_or_null(seen.first)},
          {"places", known_or_null(seen.places)}};
}

void from_json(const json& json, SeenP& seen) {
  json.at("tile").get_to(seen.tile);
  json.at("first_key").get_to(seen.first_key);
  seen.P_expected = numbers(json.at("P_expected"));
  seen.P = numbers(json.at("P"));
  seen.S_expected = numbers(json.at("S_expected"));
  json.at("wrong").get_to(seen.wrong);
  json.at("compared").get_to(seen.compared);
  read(json, "first", seen.first);
  read(json, "places", seen.places);
}

void to_json(json& json, const SeenLayout::Operand& operand) {
  json = {{"key", operand.key},     {"column", operand.column}, {"lane", operand.lane}, {"mma_n", operand.mma_n},
          {"mma_k", operand.mma_k}, {"register", operand.reg},  {"half", operand.half}};
}

void from_json(const json& json, SeenLayout::Operand& operand) {
  json.at("key").get_to(operand.key);
  json.at("column").get_to(operand.column);
  json.at("lane").get_to(operand.lane);
  json.at("mma_n").get_to(operand.mma_n);
  json.at("mma_k").get_to(operand.mma_k);
  json.at("register").get_to(operand.reg);
  json.at("half").get_to(operand.half);
}

void to_json(json& json, const SeenLayout& layout) {
  json = {{"tensor", layout.tensor},
          {"elements", layout.elements},
          {"wrong", layout.wrong},
          {"text", known_or_null(layout.text)},
          {"first", known_or_null(layout.first)}};
}

void from_json(const json& json, SeenLayout& layout) {
  json.at("tensor").get_to(layout.tensor);
  json.at("elements").get_to(layout.elements);
  json.at("wrong").get_to(layout.wrong);
  read(json, "text", layout.text);
  read(json, "first", layout.first);
}

// ---- The whole ----

const Cut* DebugReport::first_wrong() const {
  const auto found = std::ranges::find_if(cuts, [](const Cut& cut) { return !cut.right(); });
  return found == cuts.end() ? nullptr : &*found;
}

bool DebugReport::right() const {
  return first_wrong() == nullptr && findings.empty() &&
         std::ranges::all_of(layouts, [](const SeenLayout& layout) { return layout.wrong == 0; }) &&
         (!P || P->wrong == 0);
}

void to_json(json& json, const DebugReport& report) {
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
          {"step_kv", report.step_kv},
          {"row",
           {{"batch", report.batch},
            {"head", report.head},
            {"row", report.row},
            {"holder", known_or_null(report.holder)},
            {"scale", report.scale},
            {"Q", report.Q},
            {"K", report.K},
            {"V", report.V}}},
          {"right", report.right()},
          {"cuts", report.cuts},
          {"P", known_or_null(report.P)},
          {"layouts", report.layouts},
          {"diagnosis", known_or_null(report.diagnosis)},
          {"findings", report.findings},
          {"look_at", report.look_at}};
}

void from_json(const json& json, DebugReport& report) {
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
  json.at("step_kv").get_to(report.step_kv);
  const auto& row = json.at("row");
  row.at("batch").get_to(report.batch);
  row.at("head").get_to(report.head);
  row.at("row").get_to(report.row);
  read(row, "holder", report.holder);
  row.at("scale").get_to(report.scale);
  row.at("Q").get_to(report.Q);
  row.at("K").get_to(report.K);
  row.at("V").get_to(report.V);
  json.at("cuts").get_to(report.cuts);
  read(json, "P", report.P);
  json.at("layouts").get_to(report.layouts);
  read(json, "diagnosis", report.diagnosis);
  json.at("findings").get_to(report.findings);
  json.at("look_at").get_to(report.look_at);
}

}  // namespace flash_ladder
