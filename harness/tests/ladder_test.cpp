// The rules that make the kernels a ladder: one file a version, one idea a step, predictions and no results in the files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "registry.h"
#include "source/kernel_source.h"

namespace flash_ladder {
namespace {

using testing::Contains;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kMostLinesInADiff = 60;               // to add, and as many to remove
const std::set<int> kReplaceStructure = {2, 3, 4};  // their step from the version before may be larger

std::string label(const Version& version) { return fmt::format("{:02}_{}", version.number, version.name); }

std::filesystem::path path_of(const Version& version) {
  return std::filesystem::path(FLASH_LADDER_SOURCE_DIR) / "kernels" / (label(version) + ".cu");
}

std::vector<std::string> lines_of(const Version& version) {
  std::vector<std::string> lines;
  std::ifstream file(path_of(version));
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Ladder, EveryFileIsRegisteredUnderItsNumberAndName) {
  std::vector<std::string> files, registered;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(FLASH_LADDER_SOURCE_DIR) / "kernels"))
    if (entry.path().extension() == ".cu") files.push_back(entry.path().stem());
  std::sort(files.begin(), files.end());
  for (const Version& version : versions()) {
    registered.push_back(label(version));
    EXPECT_EQ(std::filesystem::path(version.source).stem(), label(version))
        << "number and name do not fit the file's name";
  }
  EXPECT_THAT(registered, ElementsAreArray(files));
}

TEST(Ladder, NumbersHaveNoGap) {
  ASSERT_THAT(versions(), Not(IsEmpty()));
  for (std::size_t i = 0; i < versions().size(); ++i) EXPECT_EQ(versions()[i].number, static_cast<int>(i) + 1);
}

TEST(Ladder, TitleAndNamespaceCarryNumberAndName) {
  for (const Version& version : versions()) {
    const auto lines = lines_of(version);
    ASSERT_THAT(lines, Not(IsEmpty())) << path_of(version);
    EXPECT_EQ(lines.front(), fmt::format("// {:02} · {}", version.number, version.name));
    EXPECT_THAT(lines, Contains(fmt::format("namespace flash_ladder::v{:02} {{", version.number))) << path_of(version);
  }
}

TEST(Ladder, EveryFileSaysIdeaChangeAndPrediction) {
  for (const Version& version : versions()) {
    const HeaderComment header = read_header_comment(path_of(version));
    EXPECT_THAT(header.idea, Not(IsEmpty())) << path_of(version);
    EXPECT_THAT(header.changed, Not(IsEmpty())) << path_of(version);
    EXPECT_THAT(header.prediction, Not(IsEmpty())) << path_of(version);
  }
}

// What was measured belongs into profiles/ and the chapters. A prediction may name round figures; one with a decimal point
// comes from a measurement.
TEST(Ladder, HeadersHoldNoMeasuredSpeed) {
  const std::regex speed("[0-9]\\s*TFLOP"), exact_speed("[0-9]\\.[0-9]+\\s*TFLOP");
  for (const Version& version : versions()) {
    const HeaderComment header = read_header_comment(path_of(version));
    EXPECT_FALSE(std::regex_search(header.idea + " " + header.changed, speed)) << path_of(version);
    EXPECT_FALSE(std::regex_search(header.prediction, exact_speed)) << path_of(version);
    EXPECT_THAT(header.prediction, Not(HasSubstr("measured"))) << path_of(version);
  }
}

TEST(Ladder, FilesHave80To430Lines) {
  for (const Version& version : versions()) {
    const auto lines = lines_of(version).size();
    EXPECT_GE(lines, 80) << path_of(version);
    EXPECT_LE(lines, 430) << path_of(version);
  }
}

TEST(Ladder, AStepIsASmallDiff) {
  for (std::size_t i = 1; i < versions().size(); ++i) {
    const Version &before = versions()[i - 1], &version = versions()[i];
    const DiffSize diff = diff_size(path_of(before), path_of(version));
    EXPECT_GT(diff.added + diff.removed, 1) << label(version) << " is " << label(before) << " under another name";
    if (kReplaceStructure.contains(version.number)) continue;
    EXPECT_LE(diff.added, kMostLinesInADiff) << label(before) << " → " << label(version);
    EXPECT_LE(diff.removed, kMostLinesInADiff) << label(before) << " → " << label(version);
  }
}

TEST(Ladder, ConfigurationsComeInBothTypes) {
  for (const Version& version : versions()) {
    std::set<std::string> names[2], traits;
    for (const Configuration& configuration : version.configurations) {
      EXPECT_TRUE(names[configuration.dtype == Dtype::bf16].insert(configuration.name).second)
          << label(version) << " has two configurations " << configuration.name << " of one type";
      EXPECT_TRUE(traits.insert(configuration.traits).second)
          << label(version) << ": two configurations share their traits";
    }
    EXPECT_THAT(names[0], Not(IsEmpty())) << label(version);
    EXPECT_EQ(names[0], names[1]) << label(version);
  }
}

}  // namespace
}  // namespace flash_ladder
