// Results as JSON: the names of counters and of a problem's fields.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "host/versions.h"
#include "problem/fields.h"
#include "results/counters.h"
#include "results/result.h"

namespace flash_ladder {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> names_of_counters() {
  std::vector<std::string> names;
  const Counters counters;
  for_each_counter(counters, [&](const std::string& name, std::uint64_t) { names.push_back(name); });
  return names;
}

// Each has a different value.
Counters some_counters() {
  Counters counters;
  std::uint64_t count = 100;
  for_each_counter(counters, [&](const std::string&, std::uint64_t& counter) { counter = count++; });
  return counters;
}

// The number of counters that are written even if they are 0.
std::size_t always_there() {
  const std::vector<std::string> names = names_of_counters();
  return static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(), [](const std::string& name) { return !is_of_hopper(name); }));
}

nlohmann::json schema_of(const std::string& what) {
  std::ifstream file(FLASH_LADDER_SOURCE_DIR "/harness/results/" + what + ".schema.json");
  return nlohmann::json::parse(file);
}

TEST(Problem, FieldsAreThoseOfTheSchema) {
  const nlohmann::json problem = schema_of("results")["$defs"]["problem"];
  std::vector<std::string> known, required;
  for (const auto& [name, property] : problem["properties"].items()) known.push_back(name);
  for_each_field([&](const auto& field) {
    EXPECT_THAT(known, Contains(field.name));
    if (!field.is_extension()) required.emplace_back(field.name);
  });
  EXPECT_EQ(known.size(), std::tuple_size_v<decltype(kFields)>);
  EXPECT_EQ(problem["required"], nlohmann::json(required));
}

TEST(Solves, AreThoseOfTheSchema) {
  const nlohmann::json version = schema_of("versions")["properties"]["versions"]["items"];
  std::vector<std::string> names;
  for (const auto& [name, member] : kSolves) names.emplace_back(name);
  EXPECT_EQ(version["properties"]["solves"]["required"], nlohmann::json(names));
}

TEST(Counters, AreThoseOfTheSchema) {
  const nlohmann::json schema = schema_of("results");
  EXPECT_EQ(schema["$defs"]["counter"]["enum"], nlohmann::json(names_of_counters()));
  EXPECT_EQ(schema["$defs"]["result"]["properties"]["counters"]["minProperties"], always_there());
}

TEST(Counters, AllHaveAName) {
  EXPECT_EQ(names_of_counters().size() * sizeof(std::uint64_t), sizeof(Counters)) << "a member that no name leads to";
}

TEST(Counters, AreAllAddedUp) {
  Counters sum;
  sum += some_counters();
  EXPECT_EQ(sum, some_counters()) << "Counters::operator+= of harness/emulator/report.cpp leaves one out";
}

TEST(Counters, SurviveJson) {
  const Counters counters = some_counters();
  EXPECT_EQ(counters_from_json(counters_to_json(counters, Zeros::kept), Zeros::kept), counters);
  Counters few;
  few.branches = 3;
  EXPECT_EQ(counters_to_json(few, Zeros::left_out).dump(), R"({"branches":3})");
  EXPECT_EQ(counters_from_json(counters_to_json(few, Zeros::left_out), Zeros::left_out), few);
  EXPECT_EQ(counters_to_json(few, Zeros::kept).size(), always_there());
}

// A misspelt or missing name must not be silently read as 0.
TEST(Counters, RefuseWhatIsMissingOrUnknown) {
  auto json = counters_to_json(some_counters(), Zeros::kept);
  json.erase("barriers");
  EXPECT_THAT([&] { counters_from_json(json, Zeros::kept); },
              ThrowsMessage<std::exception>(HasSubstr("the counter 'barriers' is missing")));
  EXPECT_EQ(counters_from_json(json, Zeros::left_out).barriers, 0u);
  json["bariers"] = 1;
  EXPECT_THAT([&] { counters_from_json(json, Zeros::left_out); },
              ThrowsMessage<std::exception>(HasSubstr("there is no counter 'bariers'")));
}

TEST(Result, CountersOfNothingAreNull) {
  Result result;
  result.kernel = "06";
  result.name = "swizzle";
  EXPECT_TRUE(nlohmann::json(result)["counters"].is_null());
  EXPECT_FALSE(nlohmann::json(result).get<Result>().counters);
  result.counters = some_counters();
  EXPECT_EQ(nlohmann::json(result).get<Result>().counters, result.counters);
}

}  // namespace
}  // namespace flash_ladder
