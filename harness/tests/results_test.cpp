// Results as JSON: the names of counters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "results/counters.h"
#include "results/result.h"

namespace flash_ladder {
namespace {

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

TEST(Counters, AreThoseOfTheSchema) {
  std::ifstream file(FLASH_LADDER_SOURCE_DIR "/harness/results/results.schema.json");
  const auto schema = nlohmann::json::parse(file);
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
