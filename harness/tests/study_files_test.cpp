// The machine code of this build: what static_study finds in it for every configuration of every version, and the instructions that
// are the subject of a lesson.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "host/versions.h"
#include "sass/machine_code.h"
#include "sass/static_study.h"

namespace flash_ladder {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ptxas's complaints about the use of wgmma, C7510 to C7519, line by line: that it serialises operations that should
// overlap, or has inserted a fence of its own. They are not warnings, and cost a version half its speed.
std::vector<std::string> wgmma_complaints(const std::string& report) {
  // ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to … in the function '_Z…'
  static const std::regex complaint("\\(C751\\d\\)");
  std::vector<std::string> lines;
  std::istringstream text(report);
  for (std::string line; std::getline(text, line);)
    if (std::regex_search(line, complaint)) lines.push_back(line);
  return lines;
}

TEST(PtxasReport, ComplaintsAboutWgmma) {
  const std::string report = "ptxas info    : Used 32 registers, used 0 barriers, 512 bytes cmem[0]\n";
  EXPECT_THAT(wgmma_complaints(report), IsEmpty());
  const std::string complaint =
      "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
      "insufficient register resources for the function 'first'";
  EXPECT_THAT(wgmma_complaints(report + complaint + "\nptxas info    : (C7508) something else\n"),
              ElementsAre(complaint));
}

// The files of this build, for every configuration of every version.
int count(const std::map<std::string, int>& counts, const std::string& opcode) {
  const auto found = counts.find(opcode);
  return found == counts.end() ? 0 : found->second;
}

// Their studies are read once for all tests, as that takes longer than all that the tests look at.
const std::map<std::string, StaticStudy>& studies_of(const Version& version, const Configuration& configuration) {
  static std::map<std::pair<const Version*, const Configuration*>, std::map<std::string, StaticStudy>> read;
  const auto [place, is_new] = read.try_emplace({&version, &configuration});
  if (is_new) place->second = static_study(version, configuration, FLASH_LADDER_STUDY_DIR);
  return place->second;
}

template <typename Check>
void for_each_study(Check check) {
  ASSERT_THAT(versions(), testing::Not(IsEmpty()));
  for (const Version& version : versions())
    for (const Configuration& configuration : version.configurations)
      for (const auto& [architecture, study] : studies_of(version, configuration)) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", label(version), configuration.name, to_string(configuration.dtype),
                                 architecture));
        check(version, configuration, architecture, study);
      }
}

// The architectures for which it is studied.
std::vector<std::string> architectures_of(const Version& version) {
  if (version.architecture == Architecture::sm_90a) return {"sm_90"};
  return {"sm_80", "sm_86", "sm_89", "sm_90"};
}

TEST(StudyFiles, EveryConfigurationHasEveryArchitecture) {
  for (const Version& version : versions())
    for (const Configuration& configuration : version.configurations) {
      std::vector<std::string> studied;
      for (const auto& [architecture, study] : studies_of(version, configuration)) studied.push_back(architecture);
      EXPECT_EQ(studied, architectures_of(version)) << version.source << " " << configuration.name;
    }
}

TEST(StudyFiles, ResourcesAreWithinTheArchitecture) {
  for_each_study([](const Version&, const Configuration& configuration, const std::string&, const StaticStudy& study) {
    EXPECT_GE(study.registers, 16);
    EXPECT_LE(study.registers, 255);
    EXPECT_GE(study.spill_bytes, 0);
    EXPECT_GE(study.smem_bytes, configuration.smem_bytes);
    EXPECT_THAT(study.limited_by, testing::Not(IsEmpty()));
  });
}

// Another compiler may spill where this one just avoids it, so only the compiler with which the profiles were recorded
// counts.
TEST(StudyFiles, NoConfigurationSpills) {
  const std::string recorded = "13.0.", toolkit = FLASH_LADDER_TOOLKIT;
  if (!toolkit.starts_with(recorded))
    GTEST_SKIP() << "spills are looked for under CUDA " << recorded << "x, and this is " << toolkit;
  // From causal on, the extensions of 16 lack a few registers. What they spill is not used in the loop without a mask. D03 uses
  // all registers that twelve warps of an SM can have, and sm_86 lacks two.
  const std::set<std::string> spilling = {"window", "grouped_heads", "lengths", "scores", "longest_first", "packed"};
  const auto may_spill = [&](const Version& version, const std::string& architecture) {
    const std::string name = label(version);
    const bool sm_90 = architecture == "sm_90";
    if (name == "D03_grouped_heads") return sm_90 ? 0 : 20;
    if (name == "causal") return sm_90 ? 8 : 24;
    if (name == "dropout") return sm_90 ? 308 : 188;
    if (name == "head_dims") return sm_90 ? 308 : 260;
    return !spilling.contains(name) ? 0 : sm_90 ? 48 : 144;
  };
  int looked_at = 0;
  for_each_study([&](const Version& version, const Configuration& configuration, const std::string& architecture,
                     const StaticStudy& study) {
    if (study.ctas_per_sm == 0) return;  // it does not fit, and never runs there
    EXPECT_LE(study.spill_bytes, may_spill(version, architecture))
        << label(version) << " " << configuration.name << " " << architecture;
    ++looked_at;
  });
  EXPECT_GT(looked_at, 0);
}

// With that compiler wgmmas run concurrently with the other instructions, as the lessons say.
TEST(StudyFiles, NoWgmmaIsSerialised) {
  if (!std::string(FLASH_LADDER_TOOLKIT).starts_with("13.0.")) GTEST_SKIP() << "this is CUDA " << FLASH_LADDER_TOOLKIT;
  int looked_at = 0;
  for (const Version& version : versions()) {
    if (version.architecture != Architecture::sm_90a) continue;
    std::ifstream file(std::filesystem::path(FLASH_LADDER_STUDY_DIR) / (label(version) + ".sm_90a.ptxas"));
    std::ostringstream report;
    report << file.rdbuf();
    ASSERT_THAT(report.str(), HasSubstr("registers")) << label(version);
    EXPECT_THAT(wgmma_complaints(report.str()), IsEmpty()) << label(version);
    ++looked_at;
  }
  EXPECT_GT(looked_at, 0);
}

std::set<Dtype> dtypes_of(const Version& version) {
  std::set<Dtype> dtypes;
  for (const Configuration& configuration : version.configurations) dtypes.insert(configuration.dtype);
  return dtypes;
}

// If a version's best tile does not fit students' GPUs, the version has a second configuration that does.
TEST(StudyFiles, EveryVersionFitsEveryArchitecture) {
  for (const Version& version : versions())
    for (const Dtype dtype : dtypes_of(version))
      for (const std::string& architecture : architectures_of(version))
        EXPECT_TRUE(std::any_of(version.configurations.begin(), version.configurations.end(),
                                [&](const Configuration& c) {
                                  return c.dtype == dtype && studies_of(version, c).at(architecture).ctas_per_sm > 0;
                                }))
            << version.name << " " << to_string(dtype) << " " << architecture;
}

// Those for Hopper, except on the decoding track, where the rows of an mma are enough.
bool uses_wgmma(const Version& version) {
  return version.architecture == Architecture::sm_90a && version.track != Track::decoding;
}

// Both products of a tile take block_q · block_kv · (head_dim + head_dim_v) multiplications, by mmas of 16 · 8 · 16, divided
// among the warps. Backward, the two sizes are the same.
TEST(StudyFiles, TheHotLoopIsTheOneOverTheKeys) {
  for_each_study([](const Version& version, const Configuration& configuration, const std::string& architecture,
                    const StaticStudy& study) {
    if (uses_wgmma(version) || (architecture != "sm_80" && architecture != "sm_90")) return;
    const int first_with_mma = version.track == Track::backward || version.track == Track::decoding ? 3 : 4;
    if (!version.is_extension() && version.number < first_with_mma) {
      EXPECT_EQ(count(study.sass, "HMMA"), 0);
      EXPECT_GT(count(study.hot_loop_sass, "FFMA"), 0);
      return;
    }
    const int hmma = count(study.hot_loop_sass, "HMMA");
    // A deterministic version computes dQ in a loop of its own.
    const int products = version.kind != ProblemKind::backward ? 2 : version.deterministic ? 4 : 5;
    // The warps of a CTA share its tile, but when decoding, each of them has its own keys.
    const int sharing = version.track == Track::decoding ? 1 : configuration.num_warps;
    const int columns = products * (configuration.head_dim + configuration.head_dim_v) / 2;
    const int whole_tile = columns * configuration.block_q * configuration.block_kv / (16 * 8 * 16) / sharing;
    ASSERT_GT(hmma, 0);
    EXPECT_TRUE(hmma % whole_tile == 0 || whole_tile % hmma == 0)
        << hmma << " HMMA in an iteration, " << whole_tile << " in a tile";
  });
}

// For each tile a warp issues head_dim / 16 wgmmas for S, and block_kv / 16 for P V. Backward, it issues head_dim / 16 for S and
// for dP, block_q / 16 for dV and for dK, and block_kv / 16 for dQ.
TEST(StudyFiles, TheHotLoopOfHoppersKernelsIsTheOneOverTheKeys) {
  for_each_study(
      [](const Version& version, const Configuration& configuration, const std::string&, const StaticStudy& study) {
        if (!uses_wgmma(version)) return;
        const bool in_8_bits = configuration.dtype == Dtype::e4m3;  // twice as many values of k
        const int k = version.kind == ProblemKind::backward
                          ? 2 * configuration.head_dim + 2 * configuration.block_q + configuration.block_kv
                          : configuration.head_dim + configuration.block_kv;
        EXPECT_EQ(count(study.hot_loop_sass, in_8_bits ? "QGMMA" : "HGMMA"), k / (in_8_bits ? 32 : 16));
      });
}

// From 23 on a softmax runs concurrently with P V, between the wait for S and the wait for both. ptxas once moved one
// after the second wait.
TEST(StudyFiles, HoppersSoftmaxStandsBeforeTheWaitForPV) {
  int looked_at = 0;
  for (const Version& version : versions()) {
    if (!uses_wgmma(version) || version.kind == ProblemKind::backward ||
        (version.track == Track::hopper && version.number < 23))
      continue;
    std::istringstream code(needed_machine_code(FLASH_LADDER_STUDY_DIR, label(version) + ".sm_90a"));
    std::vector<int> exponentials;  // between the two waits, for each function
    bool between = false;
    for (std::string line; std::getline(code, line);) {
      if (line.find("WARPGROUP.DEPBAR.LE gsb0, 0x1") != line.npos) {
        between = true;
        exponentials.push_back(0);
      }
      if (line.find("WARPGROUP.DEPBAR.LE gsb0, 0x0") != line.npos) between = false;
      if (between && line.find("MUFU.EX2") != line.npos) ++exponentials.back();
    }
    // A kernel without a mask, one with the causal mask, and one with a window; the last two also with changed scores. With
    // lengths, one with a window, also with changed scores.
    const Solves& solves = version.solves;
    const int kernels = 1 + solves.causal + solves.window + 2 * solves.scores + 2 * solves.lengths;
    EXPECT_EQ(exponentials.size(), version.configurations.size() * kernels) << label(version);
    int fewest_keys = version.configurations.front().block_kv;
    for (const Configuration& configuration : version.configurations)
      fewest_keys = std::min(fewest_keys, configuration.block_kv);
    // A thread has 64 · block_kv / 128 scores; the compiler may move the last few exponentials after all.
    for (const int count : exponentials) EXPECT_GT(count, fewest_keys / 2 * 3 / 4) << label(version);
    ++looked_at;
  }
  EXPECT_GT(looked_at, 0);
}

// The subject of the Hopper track's lessons, as it appears in the code.
TEST(StudyFiles, TmaRolesAndRegisters) {
  for_each_study([](const Version& version, const Configuration&, const std::string&, const StaticStudy& study) {
    if (version.track != Track::hopper) return;
    EXPECT_EQ(count(study.sass, "LDGSTS") > 0, version.number == 17) << "cp.async";
    EXPECT_EQ(count(study.sass, "UTMALDG") > 0, version.number >= 18) << "TMA loads";
    EXPECT_EQ(count(study.sass, "USETMAXREG") > 0, version.number >= 20) << "setmaxnreg";
    EXPECT_EQ(count(study.sass, "UTMASTG") > 0, version.number >= 22) << "TMA stores";
    EXPECT_EQ(count(study.sass, "STSM") > 0, version.number >= 22) << "stmatrix";
    EXPECT_EQ(count(study.sass, "HMMA"), 0);
  });
}

// The subject of the lessons of 05 and 07, as it appears in the code.
TEST(StudyFiles, CopiesAndFragmentLoads) {
  for_each_study(
      [](const Version& version, const Configuration&, const std::string& architecture, const StaticStudy& study) {
        if (version.track != Track::ladder || version.number < 4) return;
        if (architecture != "sm_80" && architecture != "sm_90") return;
        const auto all = [&](const std::string& opcode) {
          return count(study.hot_loop_sass, opcode) + count(study.hot_loop_cold_sass, opcode);
        };
        EXPECT_EQ(all("LDGSTS") > 0, version.number >= 5);
        EXPECT_EQ(all("LDG") + all("STS") > 0, version.number < 5);
        EXPECT_EQ(all("LDSM") > 0, version.number >= 7);
        const bool mbarriers = version.number >= 13;
        const bool reads_mbarriers = mbarriers && architecture == "sm_80";  // sm_90 has an instruction for it
        EXPECT_EQ(all("LDS") > 0, version.number < 7 || reads_mbarriers);
      });
}

TEST(StudyFiles, PtxHasLineInformation) {
  for (const Version& version : versions()) {
    if (version.architecture != Architecture::sm_80) continue;  // the virtual GPU has nothing to run for it
    const auto path = std::filesystem::path(FLASH_LADDER_STUDY_DIR) / (label(version) + ".compute_80.ptx");
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    EXPECT_THAT(text.str(), HasSubstr(".target sm_80")) << path;
    EXPECT_THAT(text.str(), HasSubstr("inlined_at")) << path;
    EXPECT_THAT(text.str(), HasSubstr(std::filesystem::path(version.source).filename().string())) << path;
  }
}

}  // namespace
}  // namespace flash_ladder
