// Machine code instruction by instruction, the PTX from which it was compiled, two pieces of code side by side, and the
// quiz's arithmetic.
#include "sass/sass_listing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "app/compare/sass_alignment.h"
#include "app/quiz/quiz.h"
#include "errors.h"
#include "host/versions.h"
#include "rules/support.h"
#include "rules/version_name.h"
#include "sass/configuration_code.h"
#include "sass/ptx_text.h"
#include "sass/static_study.h"

namespace flash_ladder {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::Eq;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing::ThrowsMessage;

constexpr const char* kSass = R"(
	.target	sm_90
.text.first:
	//## File ".nv_debug_ptx_txt", line 12
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_7) ;
.L_x_3:
	//## File ".nv_debug_ptx_txt", line 15
        /*0020*/                   HMMA.16816.F32 R4, R8.reuse, R12, RZ ;
	//## File ".nv_debug_ptx_txt", line 13
        /*0030*/                   ISETP.GE.AND P1, PT, R2, UR4, PT ;
        /*0040*/               @P1 BRA `(.L_x_3) ;
.L_x_7:
        /*0050*/                   EXIT ;
.L_x_8:
        /*0060*/                   BRA `(.L_x_8);
        /*0070*/                   NOP;
.text.second:
        /*0000*/                   EXIT ;
)";

TEST(SassText, HasNeitherAddressesNorPaddingAndItsOwnLabels) {
  const auto functions = parse_sass_text(kSass);
  ASSERT_EQ(functions.size(), 2u);
  std::vector<std::string> texts, opcodes;
  std::vector<int> ptx;
  for (const SassInstruction& instruction : functions[0].instructions) {
    texts.push_back(instruction.text);
    opcodes.push_back(instruction.opcode);
    ptx.push_back(instruction.ptx_line);
  }
  EXPECT_THAT(texts, ElementsAre("MOV R1, c[0x0][0x28]", "@!P0 BRA L2", "HMMA.16816.F32 R4, R8.reuse, R12, RZ",
                                 "ISETP.GE.AND P1, PT, R2, UR4, PT", "@P1 BRA L1", "EXIT"));
  EXPECT_THAT(opcodes, ElementsAre("MOV", "BRA", "HMMA", "ISETP", "BRA", "EXIT"));
  EXPECT_THAT(ptx, ElementsAre(12, 12, 15, 13, 13, 13)) << "a line counts until the next is named";
  EXPECT_THAT(functions[0].labels, testing::UnorderedElementsAre(Pair(2u, "L1"), Pair(5u, "L2"), Pair(6u, "L3")));
  EXPECT_EQ(functions[1].instructions.front().ptx_line, 0) << "nothing is known of another function's first";
}

TEST(SassText, OfNothingIsNothing) {
  EXPECT_THAT(parse_sass_text(""), IsEmpty());
  EXPECT_THAT(parse_sass_text("/*0000*/ EXIT ;\nno machine code\n"), IsEmpty());
}

TEST(SassText, WithoutRegistersKeepsWhatIsNone) {
  for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
           {"LDSM.16.M88.4 R112, [R52+0x4000]", "LDSM.16.M88.4 R, [R+0x4000]"},
           {"@!P0 LDC.64 R4, c[0x0][0x218]", "@!P LDC.64 R, c[0x0][0x218]"},
           {"LOP3.LUT R0, R207.reuse, 0x7, RZ, 0xc0, !PT", "LOP3.LUT R, R, 0x7, RZ, 0xc0, !PT"},
           {"HMMA.16816.F32.BF16 R36, R136, R112, RZ", "HMMA.16816.F32.BF16 R, R, R, RZ"},
           {"LDGSTS.E.BYPASS.128 [R5], desc[UR8][R2.64+0x10]", "LDGSTS.E.BYPASS.128 [R], desc[UR][R.64+0x10]"},
           {"DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB, 0x1"},
           {"IADD3 R2, P0, P1, R4, R6, UR7", "IADD3 R, P, P, R, R, UR"},
           {"S2R R177, SR_TID.X", "S2R R, SR_TID.X"},
           {"", ""}})
    EXPECT_EQ(without_registers(before), after);
}

constexpr const char* kPtx = R"(
.version 9.0
.visible .entry first(
	.param .u64 first_param_0
)
.maxntid 128
{
	.reg .b32 	%r<9>;
	.loc	1 156 3
	mov.u32 	%r1, %tid.x;
	.loc	1 64 5, function_name $L__info_string0, inlined_at 1 156 3
	@%p1 bra 	$L__BB0_2;
	.loc	2 14 10, function_name $L__info_string1, inlined_at 1 64 5
	// begin inline asm
	cp.async.cg.shared.global [%r1], [%rd1], 16;  // a comment
	// end inline asm
$L__BB0_2:
	{ .reg .pred q;
	call.uni (retval0),
	helper,
	(param0);
	}
	ret;
}
	// .globl	second
.visible .entry second()
{
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1, %f2};
	{ .reg .pred p; setp.ne.b32 p, %r1, 0; wgmma.mma_async.sync {%f1,
	%f2}, %rd1, %rd2, p; }
}
	.file	1 "/tree/kernels/07_ldmatrix.cu"
	.file	2 "/cuda/include/intrinsics.hpp"
)";

TEST(PtxText, HasInstructionsWithTheLinesTheyComeFrom) {
  const auto all = parse_ptx_text(kPtx, "/tree");
  std::vector<std::string> opcodes;
  for (const PtxInstruction& instruction : all) opcodes.push_back(instruction.opcode);
  ASSERT_THAT(opcodes,
              ElementsAre("mov.u32", "bra", "cp.async.cg.shared.global", "call.uni", "ret",
                          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "setp.ne.b32", "wgmma.mma_async.sync"));
  EXPECT_EQ(all[0].line, 10);
  EXPECT_THAT(all[0].position, ElementsAre("kernels/07_ldmatrix.cu:156"));
  EXPECT_EQ(all[1].text, "@%p1 bra $L__BB0_2;");
  EXPECT_THAT(all[2].position,
              ElementsAre("intrinsics.hpp:14", "kernels/07_ldmatrix.cu:64", "kernels/07_ldmatrix.cu:156"))
      << "and not the folders of others";
  EXPECT_EQ(all[2].text, "cp.async.cg.shared.global [%r1], [%rd1], 16;");
  EXPECT_EQ(all[3].text, "call.uni (retval0), helper, (param0);");
  EXPECT_EQ(all[4].function, "first");
  EXPECT_EQ(all[5].function, "second");
  EXPECT_THAT(all[5].position, IsEmpty()) << "a function does not inherit the position of the one before";
  EXPECT_EQ(all[6].text, "setp.ne.b32 p, %r1, 0;");
  EXPECT_EQ(all[7].text, "wgmma.mma_async.sync {%f1, %f2}, %rd1, %rd2, p;");
  EXPECT_EQ(all[7].line, all[6].line);
}

TEST(PtxText, OfNothingIsNothing) {
  EXPECT_THAT(parse_ptx_text("", "/tree"), IsEmpty());
  EXPECT_THAT(parse_ptx_text("mov.u32 %r1, 0;", "/tree"), IsEmpty()) << "outside of every function";
}

// ---- side by side ----

std::vector<SassInstruction> code(const std::vector<std::string>& opcodes) {
  std::vector<SassInstruction> instructions(opcodes.size());
  for (std::size_t i = 0; i < opcodes.size(); ++i) instructions[i].opcode = opcodes[i];
  return instructions;
}

std::vector<std::string> rows(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const auto from = code(a), to = code(b);
  const auto pointers = [](const std::vector<SassInstruction>& all) {
    std::vector<const SassInstruction*> list;
    for (const SassInstruction& one : all) list.push_back(&one);
    return list;
  };
  std::vector<std::string> rows;
  for (const AlignedInstructions& row : align_by_opcode(pointers(from), pointers(to)))
    rows.push_back(fmt::format("{}{}{}", row.from ? row.from->opcode : "-", row.same_opcode() ? "=" : " ",
                               row.to ? row.to->opcode : "-"));
  return rows;
}

TEST(Alignment, PutsTheSameOpcodesBesideEachOther) {
  EXPECT_THAT(rows({"LDS", "LDS", "HMMA"}, {"LDSM", "HMMA"}), ElementsAre("LDS LDSM", "LDS -", "HMMA=HMMA"));
  EXPECT_THAT(rows({"A", "B", "C"}, {"A", "C", "D"}), ElementsAre("A=A", "B -", "C=C", "- D"));
  EXPECT_THAT(rows({"A", "B"}, {"A", "B"}), ElementsAre("A=A", "B=B"));
  EXPECT_THAT(rows({}, {"A"}), ElementsAre("- A"));
  EXPECT_THAT(rows({"A"}, {}), ElementsAre("A -"));
  EXPECT_THAT(rows({}, {}), IsEmpty());
}

TEST(Alignment, PartsAreBeforeInAndAfterTheHotLoop) {
  SassText function{.name = "f", .instructions = code({"A", "B", "C", "D", "E"}), .labels = {}};
  function.instructions[1].in_hot_loop = function.instructions[3].in_hot_loop = true;
  const std::vector<SassText> functions = {{.name = "other", .instructions = code({"X"}), .labels = {}}, function};
  const KernelParts parts = parts_of(functions);
  const auto opcodes = [](const std::vector<const SassInstruction*>& part) {
    std::string text;
    for (const SassInstruction* one : part) text += one->opcode;
    return text;
  };
  EXPECT_EQ(opcodes(parts.before), "XAC") << "a cold block that lies inside comes before the end";
  EXPECT_EQ(opcodes(parts.hot_loop), "BD");
  EXPECT_EQ(opcodes(parts.after), "E");
}

// ---- the files of this build ----

class Build : public testing::Test {
 protected:
  static std::string code_of(const Version& version) {
    return version.architecture == Architecture::sm_90a ? "sm_90a" : "sm_90";
  }
  static std::vector<SassText> listing(const Version& version, const Configuration& configuration) {
    return sass_text(version, configuration, code_of(version), FLASH_LADDER_STUDY_DIR, FLASH_LADDER_SOURCE_DIR);
  }
};

TEST_F(Build, AListingHasTheInstructionsThatAreCounted) {
  for (const Version& version : versions())
    for (const Configuration& configuration : version.configurations) {
      SCOPED_TRACE(label(version) + " " + configuration.name);
      const auto study = static_study(version, configuration, FLASH_LADDER_STUDY_DIR).at("sm_90");
      std::map<std::string, int> all, loop;
      for (const SassText& function : listing(version, configuration))
        for (const SassInstruction& instruction : function.instructions) {
          ++all[instruction.opcode];
          if (instruction.in_hot_loop) ++loop[instruction.opcode];
        }
      EXPECT_EQ(all, study.sass);
      auto counted = study.hot_loop_sass;
      for (const auto& [opcode, count] : study.hot_loop_cold_sass) counted[opcode] += count;
      EXPECT_EQ(loop, counted);
    }
}

const std::string k07 = "07";

// In nvdisasm's own source lines, such a load belongs to the call before it.
TEST_F(Build, EveryLdsmOf07IsMadeOfTheLdmatrixOfItsLine) {
  const Version& version = select_version(k07);
  const Configuration& configuration = version.configurations.front();
  std::map<int, PtxInstruction> ptx;
  const std::string file = FLASH_LADDER_STUDY_DIR "/07_ldmatrix.compute_90.ptx";
  for (PtxInstruction& one : parse_ptx_text(needed_study_file(file), FLASH_LADDER_SOURCE_DIR)) ptx[one.line] = one;
  int loads = 0;
  for (const SassText& function : listing(version, configuration))
    for (const SassInstruction& instruction : function.instructions)
      if (instruction.opcode == "LDSM") {
        ++loads;
        const PtxInstruction& from = ptx.at(instruction.ptx_line);
        EXPECT_THAT(from.opcode, StartsWith("ldmatrix.")) << instruction.text;
        EXPECT_EQ(instruction.text.find(".MT88") != std::string::npos, from.opcode.find(".trans") != std::string::npos);
        EXPECT_EQ(instruction.position, from.position);
        EXPECT_THAT(instruction.position, testing::Contains(StartsWith("kernels/07_ldmatrix.cu:")));
      }
  EXPECT_EQ(loads, 72);
}

TEST_F(Build, CodeThatIsNotThereIsNamed) {
  const Version& version = select_version(k07);
  EXPECT_THAT([&] { sass_text(version, version.configurations.front(), "sm_75", FLASH_LADDER_STUDY_DIR, "/"); },
              ThrowsMessage<UnavailableError>(HasSubstr("07_ldmatrix.sm_75.cubin' is missing: build again")));
}

// ---- the quiz ----

TEST(Quiz, ReadsAFactorAsPeopleTypeIt) {
  for (const char* text : {"1.3", " 1.3\r", "1,3", "1.3x", "1.3 x", "1.3X", "1.3×", "1.30"})
    EXPECT_THAT(parse_factor(text), testing::Optional(1.3)) << text;
  EXPECT_THAT(parse_factor("2"), testing::Optional(2.0));
  EXPECT_THAT(parse_factor("0.9"), testing::Optional(0.9));
}

TEST(Quiz, RefusesWhatIsNoFactor) {
  for (const char* text :
       {"", " ", "x", "faster", "-1", "0", "nan", "inf", "1e9", "2000", "1.3.1", "1,3,1", "1.3 2", "30 %"})
    EXPECT_EQ(parse_factor(text), std::nullopt) << text;
}

TEST(Quiz, JudgesByTheRatio) {
  EXPECT_EQ(judge(1.3, 1.3), "within 5 %");
  EXPECT_EQ(judge(1.3, 1.25), "within 5 %");
  EXPECT_EQ(judge(2, 1), "too much by a factor of 2.00");
  EXPECT_EQ(judge(1, 4), "too little by a factor of 4.00");
  EXPECT_EQ(judge(1.2, 0.98), "too much by a factor of 1.22, in the opposite direction");
}

}  // namespace
}  // namespace flash_ladder
