// Parsing the output of nvdisasm and ptxas: on small hand-written texts, and on the files of this build.
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
#include <typeinfo>
#include <vector>

#include "errors.h"
#include "host/versions.h"
#include "sass/configuration_code.h"
#include "sass/machine_code.h"
#include "sass/opcode_class.h"
#include "sass/ptxas_report.h"
#include "sass/sass_code.h"
#include "sass/static_study.h"

namespace flash_ladder {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

// A section as nvdisasm prints it, given lines that are labels (".L_x_0:") or instructions ("@P0 BRA `(.L_x_0)").
std::string section(const std::string& name, const std::string& lines) {
  std::string text = fmt::format(
      "\t.target\tsm_80\n\n//--------------------- .text.{0} ---------\n\t.section\t.text.{0},\"ax\",@progbits\n"
      "        .global         {0}\n        .size           {0},(.L_x_99 - {0})\n{0}:\n.text.{0}:\n",
      name);
  std::istringstream input(lines);
  int address = 0;
  for (std::string line; std::getline(input, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.empty()) continue;
    if (line.ends_with(':')) {
      text += line + "\n";
    } else {
      text += fmt::format("        /*{:04x}*/ {:>24} ;\n", address, line);
      address += 16;
    }
  }
  return text + ".L_x_99:\n";
}

SassFunction function(const std::string& lines) {
  const auto functions = parse_sass(section("kernel", lines));
  if (functions.size() != 1) throw std::logic_error("the text has more than one function");
  return functions.front();
}

std::vector<std::vector<int>> successors(const SassFunction& function) {
  std::vector<std::vector<int>> result;
  for (const BasicBlock& block : function.blocks) result.push_back(block.successors);
  return result;
}

TEST(Sass, OpcodesLoseTheirModifiers) {
  EXPECT_THAT(count_opcodes(function(R"(
      HMMA.16816.F32.BF16 R4, R8, R12, R4
      HMMA.16816.F32 R4, R8, R12, R4
      LDSM.16.MT88.4 R8, [R2+0x1000]
      LDGSTS.E.BYPASS.128 [R3], desc[UR4][R4.64]
      @!P0 MUFU.EX2 R1, R1
      @UP0 UIADD3 UR4, UR4, 0x1, URZ
      EXIT)")),
              UnorderedElementsAre(Pair("HMMA", 2), Pair("LDSM", 1), Pair("LDGSTS", 1), Pair("MUFU", 1),
                                   Pair("UIADD3", 1), Pair("EXIT", 1)));
}

TEST(Sass, AMoveOnTheMultiplierIsAnImad) {
  EXPECT_THAT(count_opcodes(function("IMAD.MOV.U32 R1, RZ, RZ, R2\nMOV R1, R2\nEXIT")),
              UnorderedElementsAre(Pair("IMAD", 1), Pair("MOV", 1), Pair("EXIT", 1)));
}

TEST(Sass, WhatNeverExecutesIsANop) {
  EXPECT_THAT(count_opcodes(function("@!PT LDS RZ, [RZ]\nLDS R1, [R2]\nEXIT")),
              UnorderedElementsAre(Pair("NOP", 1), Pair("LDS", 1), Pair("EXIT", 1)));
}

TEST(Sass, PaddingIsNotCode) {
  const SassFunction parsed = function(R"(
      NOP
      EXIT
    .L_x_0:
      BRA `(.L_x_0)
      NOP
      NOP)");
  EXPECT_THAT(count_opcodes(parsed), UnorderedElementsAre(Pair("NOP", 1), Pair("EXIT", 1)));
  EXPECT_THAT(natural_loops(parsed), IsEmpty());
}

TEST(Sass, TextWithoutCode) {
  EXPECT_THAT(parse_sass(""), IsEmpty());
  EXPECT_THAT(parse_sass("\t.headerflags\t@\"EF_CUDA_SM80\"\n"), IsEmpty());
  EXPECT_THAT(function("").blocks, IsEmpty());
  EXPECT_EQ(hot_loop(function(""), "HMMA"), std::nullopt);
}

TEST(Sass, FunctionsAreApart) {
  const auto functions =
      parse_sass(section("first", "FADD R1, R1, R1\nEXIT") + section("second", "FMUL R1, R1, R1\nEXIT"));
  ASSERT_EQ(functions.size(), 2);
  EXPECT_EQ(functions[0].name, "first");
  EXPECT_EQ(functions[1].name, "second");
  EXPECT_THAT(count_opcodes(functions[1]), UnorderedElementsAre(Pair("FMUL", 1), Pair("EXIT", 1)));
}

TEST(Sass, BranchesThatDependGoTwoWays) {
  const SassFunction parsed = function(R"(
      @P0 BRA `(.L_x_1)
      BRA !P2, `(.L_x_1)
      @!P1 EXIT
      BRA `(.L_x_2)
    .L_x_1:
      FADD R1, R1, R1
    .L_x_2:
      EXIT)");
  EXPECT_THAT(successors(parsed), ElementsAre(ElementsAre(1, 4), ElementsAre(2, 4), ElementsAre(3), ElementsAre(5),
                                              ElementsAre(5), IsEmpty()));
}

TEST(Sass, CallsComeBackButNotFromALabel) {
  const SassFunction parsed = function(R"(
      CALL.REL.NOINC `($__internal_0_$rcp_slowpath)
      @P0 CALL.REL.NOINC `(.L_x_1)
      CALL.REL.NOINC `(.L_x_1)
      FADD R1, R1, R1
    .L_x_1:
      EXIT
    $__internal_0_$rcp_slowpath:
      RET.REL.NODEC R4 `(kernel))");
  EXPECT_THAT(successors(parsed),
              ElementsAre(ElementsAre(1, 5), ElementsAre(2, 4), ElementsAre(4), ElementsAre(4), IsEmpty(), IsEmpty()));
}

TEST(Sass, ConvergenceBarriersAreNoBranches) {
  const SassFunction parsed = function(R"(
      BSSY B0, `(.L_x_1)
      BSYNC B0
    .L_x_1:
      EXIT)");
  EXPECT_THAT(successors(parsed), ElementsAre(ElementsAre(1), IsEmpty()));
}

TEST(Sass, JumpTables) {
  const SassFunction parsed = function(R"(
      BRX R2 -0x30 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)
    .L_x_1:
      EXIT
    .L_x_2:
      EXIT)");
  EXPECT_THAT(successors(parsed), ElementsAre(ElementsAre(1, 2), IsEmpty(), IsEmpty()));
}

TEST(HotLoop, NoLoop) {
  EXPECT_EQ(hot_loop(function("HMMA.16816.F32 R4, R8, R12, R4\nEXIT"), "HMMA"), std::nullopt);
  EXPECT_EQ(hot_loop(function(".L_x_0:\nFADD R1, R1, R1\n@P0 BRA `(.L_x_0)\nEXIT"), "HMMA"), std::nullopt)
      << "a loop, but without the opcode";
}

TEST(HotLoop, OneBlock) {
  const auto loop = hot_loop(function(R"(
      MOV R1, R2
    .L_x_0:
      HMMA.16816.F32 R4, R8, R12, R4
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_0)
      HMMA.16816.F32 R4, R8, R12, R4
      EXIT)"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 2), Pair("BRA", 1)));
  EXPECT_THAT(loop->cold, IsEmpty());
}

// Two loops inside one: the hot loop is the inner loop with the most, not the outer one that contains them all.
constexpr const char* kNested = R"(
    .L_x_0:
      MOV R1, R2
    .L_x_1:
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_1)
    .L_x_2:
      HMMA.16816.F32 R4, R8, R12, R4
      HMMA.16816.F32 R4, R8, R12, R4
      FADD R1, R1, R1
      @P1 BRA `(.L_x_2)
      @P2 BRA `(.L_x_0)
      EXIT)";

TEST(HotLoop, Nested) {
  const SassFunction parsed = function(kNested);
  const auto loops = natural_loops(parsed);
  ASSERT_EQ(loops.size(), 3);
  EXPECT_THAT(loops[0].blocks, ElementsAre(0, 1, 2, 3)) << "the outer loop comes first";
  EXPECT_THAT(loops[0].latches, ElementsAre(3));
  const auto loop = hot_loop(parsed, "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 2), Pair("FADD", 1), Pair("BRA", 1)));
}

// The code before and after an inner loop may contain as many as one iteration of it.
TEST(HotLoop, AnInnerLoopRatherThanAsMuchAroundIt) {
  const auto loop = hot_loop(function(R"(
    .L_x_0:
      HMMA.16816.F32 R4, R8, R12, R4
    .L_x_1:
      HMMA.16816.F32 R4, R8, R12, R4
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_1)
      HMMA.16816.F32 R4, R8, R12, R4
      STG.E.128 [R2], R4
      @P1 BRA `(.L_x_0)
      EXIT)"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 2), Pair("BRA", 1)));
}

// A wait that spins is an inner loop too, but does not contain the work.
TEST(HotLoop, InnerLoopWithoutWork) {
  const auto loop = hot_loop(function(R"(
    .L_x_0:
      LDSM.16.M88.4 R8, [R2]
    .L_x_1:
      SYNCS.ARRIVE.TRANS64 RZ, [R3]
      @!P0 BRA `(.L_x_1)
      HMMA.16816.F32 R4, R8, R12, R4
      @P2 BRA `(.L_x_0)
      EXIT)"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration,
              UnorderedElementsAre(Pair("LDSM", 1), Pair("SYNCS", 1), Pair("HMMA", 1), Pair("BRA", 2)));
  EXPECT_THAT(loop->cold, IsEmpty());
}

TEST(HotLoop, ColdBlocksAreApart) {
  const auto loop = hot_loop(function(R"(
    .L_x_0:
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_1)
      FMNMX R1, R1, R2, !PT
      SHFL.BFLY PT, R1, R1, 0x1, 0x1f
    .L_x_1:
      FFMA R1, R1, R2, R3
      @P1 BRA `(.L_x_0)
      EXIT)"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 1), Pair("FFMA", 1), Pair("BRA", 2)));
  EXPECT_THAT(loop->cold, UnorderedElementsAre(Pair("FMNMX", 1), Pair("SHFL", 1)));
}

// The cold block may also be outside the loop's lines, where ptxas often places it.
TEST(HotLoop, ColdBlockBehindTheLoop) {
  const auto loop = hot_loop(function(R"(
    .L_x_0:
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_2)
    .L_x_1:
      @P1 BRA `(.L_x_0)
      EXIT
    .L_x_2:
      FMNMX R1, R1, R2, !PT
      BRA `(.L_x_1))"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 1), Pair("BRA", 2)));
  EXPECT_THAT(loop->cold, UnorderedElementsAre(Pair("FMNMX", 1), Pair("BRA", 1)));
}

// With two back edges (a `continue`), only code before both is in every iteration.
TEST(HotLoop, TwoBackEdges) {
  const SassFunction parsed = function(R"(
    .L_x_0:
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 BRA `(.L_x_0)
      FADD R1, R1, R1
      @P1 BRA `(.L_x_0)
      EXIT)");
  EXPECT_THAT(natural_loops(parsed).at(0).latches, ElementsAre(0, 1));
  const auto loop = hot_loop(parsed, "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 1), Pair("BRA", 1)));
  EXPECT_THAT(loop->cold, UnorderedElementsAre(Pair("FADD", 1), Pair("BRA", 1)));
}

// The form in which ptxas writes the K/V loop for sm_80: it is left through a call to the label after it.
TEST(HotLoop, LeftByACall) {
  const auto loop = hot_loop(function(R"(
    .L_x_2:
      HMMA.16816.F32 R4, R8, R12, R4
      @P0 CALL.REL.NOINC `(.L_x_1)
      BRA `(.L_x_2)
    .L_x_1:
      FMUL R1, R1, R2
      EXIT)"),
                             "HMMA");
  ASSERT_TRUE(loop);
  EXPECT_THAT(loop->every_iteration, UnorderedElementsAre(Pair("HMMA", 1), Pair("CALL", 1), Pair("BRA", 1)));
}

TEST(OpcodeClass, OfOpcodes) {
  EXPECT_EQ(opcode_class("LDSM"), "shared memory");
  EXPECT_EQ(opcode_class("FROB"), "other");
}

TEST(OpcodeClass, OfHoppersOpcodes) {
  EXPECT_EQ(opcode_class("HGMMA"), "tensor core");
  for (const char* opcode : {"UTMALDG", "UTMASTG", "UTMACMDFLUSH"}) EXPECT_EQ(opcode_class(opcode), "TMA") << opcode;
  for (const char* opcode : {"SYNCS", "WARPGROUP", "FENCE", "USETMAXREG"})
    EXPECT_EQ(opcode_class(opcode), "synchronisation") << opcode;
  EXPECT_EQ(opcode_class("STSM"), "shared memory");
  EXPECT_EQ(opcode_class("ELECT"), "warp exchange");
}

TEST(OpcodeClass, TheWorkIsToldByTheLargestMma) {
  EXPECT_EQ(work_opcode({{"FFMA", 64}, {"HGMMA", 16}}), "HGMMA");
  EXPECT_EQ(work_opcode({{"FFMA", 64}, {"HMMA", 16}}), "HMMA");
  EXPECT_EQ(work_opcode({{"FFMA", 64}, {"FADD", 128}}), "FFMA");
  EXPECT_EQ(work_opcode({{"FADD", 128}}), "");
}

constexpr const char* kReport = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    80 bytes stack frame, 76 bytes spill stores, 100 bytes spill loads
ptxas info    : Used 166 registers, used 1 barriers, 80 bytes cumulative stack size, 2064 bytes smem, 512 bytes cmem[0]
ptxas info    : Compile time = 194.379 ms
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 512 bytes cmem[0]
)";

TEST(PtxasReport, RegistersSpillsAndStaticSharedMemory) {
  const auto functions = parse_ptxas_report(kReport);
  ASSERT_EQ(functions.size(), 2);
  EXPECT_EQ(functions.at("first").registers, 166);
  EXPECT_EQ(functions.at("first").spill_bytes, 176);
  EXPECT_EQ(functions.at("first").static_smem_bytes, 2064);
  EXPECT_EQ(functions.at("second").registers, 32);
  EXPECT_EQ(functions.at("second").spill_bytes, 0);
  EXPECT_EQ(functions.at("second").static_smem_bytes, 0);
}

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
  EXPECT_THAT(wgmma_complaints(kReport), IsEmpty());
  const std::string complaint =
      "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
      "insufficient register resources for the function 'first'";
  EXPECT_THAT(wgmma_complaints(kReport + complaint + "\nptxas info    : (C7508) something else\n"),
              ElementsAre(complaint));
}

}  // namespace

// A version that exists only here, with traits whose names appear in its functions' names as those of real versions do.
namespace v90 {
template <typename Element>
struct Traits {};
}  // namespace v90

namespace {

class HandMadeStudy : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(directory_ / name) << text; }

  // void flash_ladder::v90::<name><flash_ladder::v90::Traits<__half> >(flash_ladder::AttentionArgs)
  static std::string mangled(const std::string& name) {
    return fmt::format("_ZN12flash_ladder3v90{}{}INS0_6TraitsI6__halfEEEEvNS_13AttentionArgsE", name.size(), name);
  }
  static std::string report(const std::string& name, int registers, int spills, int smem) {
    return fmt::format(
        "ptxas info    : Compiling entry function '{0}' for 'sm_80'\n    0 bytes stack frame, {2} bytes spill stores, 0 bytes "
        "spill loads\nptxas info    : Used {1} registers, used 1 barriers, {3} bytes smem, 512 bytes cmem[0]\n",
        mangled(name), registers, spills, smem);
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) /
      ("sass_test_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
  const Version version_{.number = 90, .name = "made_up", .source = "kernels/90_made_up.cu", .configurations = {}};
  const Configuration configuration_{.name = "16x16",
                                     .dtype = Dtype::fp16,
                                     .block_q = 16,
                                     .block_kv = 16,
                                     .head_dim = 128,
                                     .num_warps = 4,
                                     .stages = 1,
                                     .step_kv = 64,
                                     .smem_bytes = 1000,
                                     .traits = typeid(v90::Traits<__half>).name(),
                                     .workspace_bytes = no_workspace,
                                     .launch = {}};
};

TEST_F(HandMadeStudy, SeveralFunctions) {
  // The function of another type, larger in every way, must be left out.
  std::string other = mangled("scores");
  other.replace(other.find("6__half"), 7, "13__nv_bfloat16");
  write("90_made_up.sm_80.sass",
        section(mangled("scores"), "FADD R1, R1, R1\nEXIT") +
            section(mangled("output"), ".L_x_0:\nFFMA R1, R1, R1, R1\nFADD R1, R1, R1\n@P0 BRA `(.L_x_0)\nEXIT") +
            section(other, "HMMA.16816.F32 R4, R8, R12, R4\nEXIT"));
  std::string other_report = report("scores", 255, 999, 9999);
  other_report.replace(other_report.find("6__half"), 7, "13__nv_bfloat16");
  write("90_made_up.sm_80.ptxas", report("scores", 40, 8, 24) + report("output", 128, 0, 0) + other_report);

  const auto studies = static_study(version_, configuration_, directory_);
  ASSERT_THAT(studies,
              UnorderedElementsAre(Pair("sm_80", testing::_), Pair("sm_86", testing::_), Pair("sm_89", testing::_)))
      << "there is no code for sm_90";
  const StaticStudy& study = studies.at("sm_80");
  EXPECT_EQ(study.registers, 128);
  EXPECT_EQ(study.spill_bytes, 8);
  EXPECT_EQ(study.smem_bytes, 1024);
  EXPECT_EQ(study.ctas_per_sm, 4);  // output: 128 registers × 128 threads, 65,536 of them
  EXPECT_EQ(study.limited_by, "registers");
  EXPECT_THAT(study.sass, UnorderedElementsAre(Pair("FADD", 2), Pair("FFMA", 1), Pair("BRA", 1), Pair("EXIT", 2)));
  EXPECT_THAT(study.hot_loop_sass, UnorderedElementsAre(Pair("FADD", 1), Pair("FFMA", 1), Pair("BRA", 1)));
  EXPECT_THAT(study.sass_hash, testing::StartsWith("sha256:"));
  EXPECT_THAT(studies.at("sm_86").sass, IsEmpty());
  EXPECT_THAT(studies.at("sm_86").sass_hash, IsEmpty()) << "it runs the code of sm_80, which has it";
  EXPECT_EQ(studies.at("sm_86").registers, 128);
}

TEST_F(HandMadeStudy, AVersionForSm90aHasItsOwnFilesAndNoOthers) {
  write("90_made_up.sm_80.sass", section("_Z5otherv", "EXIT"));  // not even read
  write("90_made_up.sm_80.ptxas", kReport);
  write("90_made_up.sm_90a.sass", section(mangled("output"), "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24\nEXIT"));
  write("90_made_up.sm_90a.ptxas", report("output", 168, 0, 24));
  Version version = version_;
  version.architecture = Architecture::sm_90a;
  const auto studies = static_study(version, configuration_, directory_);
  ASSERT_THAT(studies, UnorderedElementsAre(Pair("sm_90", testing::_)));
  EXPECT_EQ(studies.at("sm_90").registers, 168);
  EXPECT_THAT(studies.at("sm_90").sass, UnorderedElementsAre(Pair("HGMMA", 1), Pair("EXIT", 1)));
}

TEST_F(HandMadeStudy, TheHashIsOfTheText) {
  const auto hash_of = [&](const std::string& instructions) {
    write("90_made_up.sm_80.sass", section(mangled("scores"), instructions));
    write("90_made_up.sm_80.ptxas", report("scores", 40, 0, 0));
    return static_study(version_, configuration_, directory_).at("sm_80").sass_hash;
  };
  const std::string hash = hash_of("FADD R1, R1, R1\nEXIT");
  EXPECT_EQ(hash_of("FADD R1, R1, R1\nEXIT"), hash);
  EXPECT_NE(hash_of("FADD R1, R1, R2\nEXIT"), hash) << "the same counts, and another text";
}

TEST_F(HandMadeStudy, TheHashIsNotOfTheLinesOfThePtx) {
  const auto hash_of = [&](const std::string& text) {
    write("90_made_up.sm_80.sass", text);
    write("90_made_up.sm_80.ptxas", report("scores", 40, 0, 0));
    return static_study(version_, configuration_, directory_).at("sm_80").sass_hash;
  };
  const std::string code = section(mangled("scores"), "EXIT");
  EXPECT_EQ(hash_of(code + "\t//## File \".nv_debug_ptx_txt\", line 813\n"), hash_of(code));
}

TEST_F(HandMadeStudy, TextIsMadeOfACubinThatIsNewer) {
  const std::filesystem::path built(FLASH_LADDER_STUDY_DIR);
  write("07_ldmatrix.sm_90.sass", "what an older build printed");
  std::filesystem::copy_file(built / "07_ldmatrix.sm_90.cubin", directory_ / "07_ldmatrix.sm_90.cubin");
  const std::string text = needed_machine_code(directory_, "07_ldmatrix.sm_90");
  EXPECT_THAT(text, HasSubstr("LDSM"));
  EXPECT_EQ(needed_machine_code(built, "07_ldmatrix.sm_90"), text);
  EXPECT_EQ(read_study_file(directory_ / "07_ldmatrix.sm_90.sass"), text) << "kept";
  EXPECT_EQ(needed_machine_code(directory_, "07_ldmatrix.sm_90"), text);
}

TEST_F(HandMadeStudy, ACubinThatIsNoneIsNamed) {
  write("90_made_up.sm_80.cubin", "no machine code");
  EXPECT_THAT([&] { machine_code(directory_, "90_made_up.sm_80"); },
              testing::ThrowsMessage<UnavailableError>(HasSubstr("90_made_up.sm_80.cubin' cannot be read: ")));
}

TEST_F(HandMadeStudy, NoFiles) { EXPECT_THAT(static_study(version_, configuration_, directory_), IsEmpty()); }

TEST_F(HandMadeStudy, FilesOfAnotherVersion) {
  write("90_made_up.sm_80.sass", section("_Z5otherv", "EXIT"));
  write("90_made_up.sm_80.ptxas", kReport);
  try {
    static_study(version_, configuration_, directory_);
    FAIL() << "no exception";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("flash_ladder::v90::Traits<__half>"));
    EXPECT_THAT(error.what(), HasSubstr("90_made_up.sm_80.sass"));
  }
}

// The files of this build, for every configuration of every version.
int count(const std::map<std::string, int>& counts, const std::string& opcode) {
  const auto found = counts.find(opcode);
  return found == counts.end() ? 0 : found->second;
}

template <typename Check>
void for_each_study(Check check) {
  ASSERT_THAT(versions(), testing::Not(IsEmpty()));
  for (const Version& version : versions())
    for (const Configuration& configuration : version.configurations)
      for (const auto& [architecture, study] : static_study(version, configuration, FLASH_LADDER_STUDY_DIR)) {
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
      for (const auto& [architecture, study] : static_study(version, configuration, FLASH_LADDER_STUDY_DIR))
        studied.push_back(architecture);
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
                                  return c.dtype == dtype &&
                                         static_study(version, c, FLASH_LADDER_STUDY_DIR).at(architecture).ctas_per_sm >
                                             0;
                                }))
            << version.name << " " << to_string(dtype) << " " << architecture;
}

// Both products of a tile take 2 · block_q · block_kv · head_dim multiplications, by mmas of 16 · 8 · 16, divided among
// the warps.
TEST(StudyFiles, TheHotLoopIsTheOneOverTheKeys) {
  for_each_study([](const Version& version, const Configuration& configuration, const std::string& architecture,
                    const StaticStudy& study) {
    if (version.architecture == Architecture::sm_90a || (architecture != "sm_80" && architecture != "sm_90")) return;
    const int first_with_mma = version.track == Track::backward || version.track == Track::decoding ? 3 : 4;
    if (!version.is_extension() && version.number < first_with_mma) {
      EXPECT_EQ(count(study.sass, "HMMA"), 0);
      EXPECT_GT(count(study.hot_loop_sass, "FFMA"), 0);
      return;
    }
    const int hmma = count(study.hot_loop_sass, "HMMA");
    const int products = version.kind == ProblemKind::backward ? 5 : 2;
    const int whole_tile = products * configuration.block_q * configuration.block_kv * configuration.head_dim /
                           (16 * 8 * 16) / configuration.num_warps;
    ASSERT_GT(hmma, 0);
    EXPECT_TRUE(hmma % whole_tile == 0 || whole_tile % hmma == 0)
        << hmma << " HMMA in an iteration, " << whole_tile << " in a tile";
  });
}

// For each tile a warp issues head_dim / 16 wgmmas for S, and block_kv / 16 for P V.
TEST(StudyFiles, TheHotLoopOfHoppersKernelsIsTheOneOverTheKeys) {
  for_each_study(
      [](const Version& version, const Configuration& configuration, const std::string&, const StaticStudy& study) {
        if (version.architecture != Architecture::sm_90a) return;
        const bool in_8_bits = configuration.dtype == Dtype::e4m3;  // twice as many values of k
        EXPECT_EQ(count(study.hot_loop_sass, in_8_bits ? "QGMMA" : "HGMMA"),
                  (configuration.head_dim + configuration.block_kv) / (in_8_bits ? 32 : 16));
      });
}

// From 23 on a softmax runs concurrently with P V, between the wait for S and the wait for both. ptxas once moved one
// after the second wait.
TEST(StudyFiles, HoppersSoftmaxStandsBeforeTheWaitForPV) {
  int looked_at = 0;
  for (const Version& version : versions()) {
    if (version.architecture != Architecture::sm_90a || (version.track == Track::hopper && version.number < 23))
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
