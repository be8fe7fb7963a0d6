// Parsing the output of nvdisasm and ptxas, on small hand-written texts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
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
                                     .head_dim_v = 128,
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

}  // namespace
}  // namespace flash_ladder
