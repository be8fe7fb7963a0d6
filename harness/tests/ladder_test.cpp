// The rules that make the kernels a ladder: one file per version, one idea per step, predictions but no results in the
// files. They also apply to its second track and to its extensions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "host/versions.h"
#include "modules/modules.h"
#include "source/kernel_source.h"
#include "source/line_alignment.h"
#include "source/registration_text.h"

namespace flash_ladder {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAreArray;

constexpr int kMostLinesInADiff = 60;  // to add, and as many to remove
// Their step from the version before may be larger; 17 begins the Hopper track, D02 adds a second kernel, and in fp8
// everything has a different layout. B02 and B03 are to the backward track what 03 and 04 are to the ladder, B09 moves dQ to a
// kernel of its own, and B10 begins Hopper's part. D15 removes a kernel, the workspace, and the line that shares are cut from. In
// head_dims, each size that was one number becomes two, that of Q and K and that of V and O; in backward_head_dims, that of the
// queries of a tile, too.
const std::set<std::string> kReplaceStructure = {"02",
                                                 "03",
                                                 "04",
                                                 "17",
                                                 "B02",
                                                 "B03",
                                                 "B09",
                                                 "B10",
                                                 "D02",
                                                 "D03",
                                                 "D15",
                                                 "fp8",
                                                 "head_dims",
                                                 "hopper_head_dims",
                                                 "backward_head_dims"};

std::filesystem::path path_of(const Version& version) {
  return std::filesystem::path(FLASH_LADDER_SOURCE_DIR) / version.source;
}

std::vector<std::string> lines_of(const Version& version) {
  std::vector<std::string> lines;
  std::ifstream file(path_of(version));
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The version that it extends, or the version before it; nullptr for the first.
const Version* base_of(const Version& version) {
  const Version* base = nullptr;
  for (const Version& other : versions())
    if (version.is_extension() ? kernel_id(other) == version.extends
                               : in_one_series(other, version) && other.number == version.number - 1)
      base = &other;
  return base;
}

TEST(Ladder, EveryFileIsRegistered) {
  const auto root = std::filesystem::path(FLASH_LADDER_SOURCE_DIR);
  std::vector<std::string> files, registered;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "kernels"))
    if (entry.path().extension() == ".cu") files.push_back(entry.path().lexically_relative(root).generic_string());
  for (const Version& version : versions()) registered.push_back(version.source);
  EXPECT_THAT(registered, UnorderedElementsAreArray(files));
}

TEST(Ladder, NumbersHaveNoGapAndTheTracksFollowOneAnother) {
  std::map<std::string, int> last;  // by series
  bool hopper = false;
  for (const Version& version : versions()) {
    if (version.is_extension()) continue;
    EXPECT_EQ(version.number, ++last[series(version.track)]) << version.source;
    if (version.track == Track::backward || version.track == Track::decoding) continue;
    hopper = hopper || version.track == Track::hopper;
    EXPECT_EQ(version.track, hopper ? Track::hopper : Track::ladder) << version.source;
  }
  for (const std::string letter : {"", "B", "D"}) EXPECT_GT(last[letter], 0) << letter;
}

// kernels/CMakeLists.txt decides by the folder, and the harness by the registration.
TEST(Ladder, WhatIsInHoppersFolderAndNothingElseNeedsSm90a) {
  for (const Version& version : versions())
    EXPECT_EQ(version.architecture,
              version.source.find("/hopper/") != std::string::npos ? Architecture::sm_90a : Architecture::sm_80)
        << version.source;
}

TEST(Ladder, AnExtensionSaysWhatItExtends) {
  for (const Version& version : versions()) {
    EXPECT_EQ(version.extends.empty(), !version.is_extension()) << version.source;
    if (!version.is_extension()) continue;
    const Version* base = base_of(version);
    ASSERT_TRUE(base) << version.source << " extends '" << version.extends
                      << "', which is no number or name of a version";
    EXPECT_NE(base, &version);
    EXPECT_EQ(base->architecture, version.architecture) << version.source;
  }
}

// The list of versions needs no compiled kernel.
TEST(Ladder, TheTextOfARegistrationIsUnderstood) {
  for (const Version& version : versions()) {
    SCOPED_TRACE(version.source);
    const RegistrationText text = read_registration(path_of(version));
    EXPECT_EQ(text.extends, version.extends);
    EXPECT_EQ(text.architecture == "sm_90a", version.architecture == Architecture::sm_90a);
    std::vector<std::string> solves, names;
    for (const auto& [name, member] : kSolves)
      if (version.solves.*member) solves.push_back(name);
    EXPECT_THAT(text.solves, UnorderedElementsAreArray(solves));
    for (const Configuration& configuration : version.configurations)
      if (std::ranges::find(names, configuration.name) == names.end()) names.push_back(configuration.name);
    EXPECT_EQ(text.configurations, names);
  }
}

TEST(Ladder, TheCodeOfAVersionIsInItsOwnNamespace) {
  for (const Version& version : versions()) EXPECT_EQ(why_not_its_own_code(version), std::nullopt);
}

TEST(Ladder, TitleAndNamespaceCarryNumberAndName) {
  for (const Version& version : versions()) {
    const auto lines = lines_of(version);
    ASSERT_THAT(lines, Not(IsEmpty())) << path_of(version);
    EXPECT_EQ(lines.front(), "// " + title(version));
    EXPECT_THAT(lines, Contains(fmt::format("namespace flash_ladder::{} {{", code_namespace(version))))
        << path_of(version);
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

// Measurements belong in profiles/ and the chapters. A prediction may name round figures; a figure with a decimal point
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

TEST(Ladder, FilesHave80To500Or700Lines) {
  for (const Version& version : versions()) {
    const auto lines = lines_of(version).size();
    EXPECT_GE(lines, 80) << path_of(version);
    // A version of the decoding track, like an extension, may solve more problems than the one before it.
    const bool grows = version.is_extension() || version.track == Track::decoding;
    EXPECT_LE(lines, grows ? 700 : 500) << path_of(version);
  }
}

TEST(Ladder, AStepIsASmallDiff) {
  for (const Version& version : versions()) {
    if (base_of(version) == nullptr) continue;
    const Version& before = *base_of(version);
    const DiffSize diff = diff_size(path_of(before), path_of(version));
    EXPECT_GT(diff.added + diff.removed, 1) << label(version) << " is " << label(before) << " under another name";
    if (kReplaceStructure.contains(kernel_id(version))) continue;
    EXPECT_LE(diff.added, kMostLinesInADiff) << label(before) << " → " << label(version);
    EXPECT_LE(diff.removed, kMostLinesInADiff) << label(before) << " → " << label(version);
  }
}

// common/host/ is not part of a version's hash, so it must not contain anything that a kernel could call.
TEST(Ladder, HostHeadersHoldNothingForTheDevice) {
  int headers = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(FLASH_LADDER_SOURCE_DIR) / "common" / "host")) {
    ++headers;
    for (const CodeLine& line : numbered_code_lines(entry.path()))
      for (const char* word : {"__device__", "__global__", "HOST_DEVICE", "__constant__", "asm", "#define"})
        EXPECT_THAT(line.text, Not(HasSubstr(word))) << entry.path() << ":" << line.number;
  }
  EXPECT_GT(headers, 0);
}

TEST(Ladder, ConfigurationsComeInBothTypes) {  // or, for an extension, in e4m3 alone
  for (const Version& version : versions()) {
    std::set<std::tuple<std::string, int, int>> names[2];  // and the sizes of rows
    std::set<std::string> traits;
    for (const Configuration& configuration : version.configurations) {
      EXPECT_TRUE(names[configuration.dtype == Dtype::bf16]
                      .emplace(configuration.name, configuration.head_dim, configuration.head_dim_v)
                      .second)
          << label(version) << " has two configurations " << configuration.name << " of one type and head_dim";
      EXPECT_TRUE(traits.insert(configuration.traits).second)
          << label(version) << ": two configurations share their traits";
    }
    if (version.configurations.front().dtype == Dtype::e4m3) {
      EXPECT_TRUE(version.is_extension()) << label(version) << " computes no 16-bit type";
      continue;
    }
    EXPECT_THAT(names[0], Not(IsEmpty())) << label(version);
    EXPECT_EQ(names[0], names[1]) << label(version)
                                  << ": a configuration is there for fp16 alone (first) or bf16 alone (second); "
                                     "register it for both, under one name";
  }
}

}  // namespace
}  // namespace flash_ladder
