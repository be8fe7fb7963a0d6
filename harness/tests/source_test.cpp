// Kernel files and the output of nvcc as text: header comments, code lines, diff sizes, hashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "errors.h"
#include "source/compiled_text.h"
#include "source/kernel_source.h"
#include "source/line_alignment.h"
#include "source/program_output.h"
#include "source/sha256.h"
#include "source/tokens.h"

namespace flash_ladder {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// The examples of FIPS 180-4's companion "SHA-256 Example Computations" and NIST's CAVP byte vectors (SHA256ShortMsg).
TEST(Sha256, NistVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("\xd3"), "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around the lengths at which the padding needs another block; digests from coreutils' sha256sum.
TEST(Sha256, PaddingAtBlockEdges) {
  EXPECT_EQ(sha256(std::string(55, 'x')), "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(sha256(std::string(56, 'x')), "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(sha256(std::string(63, 'x')), "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  EXPECT_EQ(sha256(std::string(64, 'x')), "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
}

std::vector<std::string> texts(std::string_view source) {
  std::vector<std::string> result;
  for (const Token& token : tokens(source)) result.push_back(token.text);
  return result;
}

TEST(Tokens, CommentsAndSpaceVanish) {
  EXPECT_THAT(texts("int a; // b\n/* c\n d */ int/**/e;"), ElementsAre("int", "a", ";", "int", "e", ";"));
  EXPECT_THAT(texts("// a comment \\\n that goes on\nx"), ElementsAre("x"));
  EXPECT_THAT(texts("/* never closed"), ElementsAre());
}

TEST(Tokens, LiteralsKeepWhatLooksLikeAComment) {
  EXPECT_THAT(texts(R"(s = "a // b /* c"; c = '"'; // '")"),
              ElementsAre("s", "=", "\"a // b /* c\"", ";", "c", "=", "'\"'", ";"));
  EXPECT_THAT(texts(R"("a \" // b" x)"), ElementsAre(R"("a \" // b")", "x"));
  EXPECT_THAT(texts("R\"(a \" // \\\n b)\" x"), ElementsAre("R\"(a \" // \\\n b)\"", "x"));
  EXPECT_THAT(texts("u8R\"x(a)\" )x\" y"), ElementsAre("u8R\"x(a)\" )x\"", "y"));
  EXPECT_THAT(texts("FOUR\"a\""), ElementsAre("FOUR", "\"a\"")) << "no raw string: R is the end of a longer name";
  EXPECT_THAT(texts("1'000'000 + 'a'"), ElementsAre("1'000'000", "+", "'a'"));
  EXPECT_THAT(texts("1.5e-3f-.5"), ElementsAre("1.5e-3f", "-", ".5"));
}

TEST(Tokens, OperatorsAreWhole) {
  EXPECT_THAT(texts("a+ +b a++b x<<<y"), ElementsAre("a", "+", "+", "b", "a", "++", "b", "x", "<<", "<", "y"));
  EXPECT_THAT(texts("a / b /= c"), ElementsAre("a", "/", "b", "/=", "c"));
}

TEST(Tokens, ContinuedLinesAreOneLine) {
  const std::vector<Token> all = tokens("#define A \\\n  ab\\\ncd\n\nx");
  EXPECT_THAT(texts("#define A \\\n  ab\\\ncd\n\nx"), ElementsAre("#", "define", "A", "abcd", "x"));
  EXPECT_EQ(all[0].line, all[3].line);
  EXPECT_NE(all[3].line, all[4].line);
}

// A directory with a kernel and a common header, which each test modifies.
class SourceFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_ / "common");
    write("common/convert.h", "#pragma once\n#include \"ptx.h\"\nfloat to_float(half x);\n");
    write("common/ptx.h", "#pragma once\nvoid mma();  // one instruction\n");
    write("common/unused.h", "int unused;\n");
    write("06_swizzle.cu", kKernel);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path write(const std::string& name, std::string_view text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
    return directory_ / name;
  }
  std::string hash() const { return code_hash(directory_ / "06_swizzle.cu", directory_ / "common"); }

  static constexpr std::string_view kKernel =
      "// 06 · swizzle\n#include \"convert.h\"\n#include <cuda_fp16.h>\n\n"
      "#define TWICE(x) 2 * x\nint f(int a) { return a >> 2; }  // a comment\nconst char* s = \"// no comment\";\n";

  // One directory per test, because tests may run at the same time.
  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) /
      ("source_test_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  const std::size_t position = result.find(from);
  if (position == std::string::npos) throw std::logic_error("the text to replace is not there");
  return result.replace(position, from.size(), to);
}

TEST_F(SourceFiles, HashIgnoresCommentsAndLayout) {
  const std::string before = hash();
  EXPECT_THAT(before, testing::MatchesRegex("sha256:[0-9a-f]{64}"));
  write("06_swizzle.cu", replaced(kKernel, "  // a comment", "/* a better\n comment */"));
  EXPECT_EQ(hash(), before);
  write("06_swizzle.cu", replaced(kKernel, "{ return a >> 2; }", "{\n  return a>>2;\n}\n"));
  EXPECT_EQ(hash(), before);
  write("06_swizzle.cu", replaced(kKernel, "int f(int a)", "int f(\\\nint a)"));
  EXPECT_EQ(hash(), before);
  write("06_swizzle.cu", kKernel);
  write("common/ptx.h", "#pragma once\n\nvoid mma();  // one instruction, better told\n");
  EXPECT_EQ(hash(), before);
}

TEST_F(SourceFiles, HashSeesEveryToken) {
  const std::string before = hash();
  std::vector<std::string> hashes = {before};
  for (const auto& [from, to] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{{">> 2", ">> 3"},
                                                                            {">> 2", "> > 2"},
                                                                            {"// no", "/ no"},
                                                                            {"no comment", "no  comment"},
                                                                            {"2 * x\n", "2 * x "}}) {
    write("06_swizzle.cu", replaced(kKernel, from, to));
    hashes.push_back(hash());
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end()) << "two different sources have the same hash";
}

TEST_F(SourceFiles, HashSeesIncludedHeadersOnly) {
  const std::string before = hash();
  write("common/unused.h", "int unused_no_more;\n");
  EXPECT_EQ(hash(), before);
  write("common/convert.h", "#pragma once\n#include \"ptx.h\"\nfloat to_float(bfloat16 x);\n");
  const std::string direct = hash();
  EXPECT_NE(direct, before);
  write("common/ptx.h", "#pragma once\nvoid mma(int);\n");
  EXPECT_NE(hash(), direct) << "a header that a header includes";
}

// Host-side facts about a version are not part of its code.
TEST_F(SourceFiles, HashDoesNotSeeHostHeaders) {
  std::filesystem::create_directories(directory_ / "common" / "host");
  write("common/convert.h", "#pragma once\n#include \"host/problem.h\"\nfloat to_float(half x);\n");
  write("common/host/problem.h", "#include \"ptx.h\"\nstruct Problem {};\n");
  const std::string before = hash();
  write("common/host/problem.h", "#include \"ptx.h\"\nstruct Problem { bool causal; };\n");
  EXPECT_EQ(hash(), before);
  write("common/convert.h", "#pragma once\nfloat to_float(half x);\n");
  EXPECT_NE(hash(), before) << "which headers are included is";
}

TEST_F(SourceFiles, HashEndsWhereHeadersIncludeEachOther) {
  write("common/ptx.h", "#pragma once\n#include \"convert.h\"\n");
  EXPECT_THAT(hash(), HasSubstr("sha256:"));
}

TEST_F(SourceFiles, MissingFileIsAClearError) {
  try {
    code_hash(directory_ / "07_none.cu", directory_ / "common");
    FAIL() << "no exception";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("07_none.cu"));
  }
}

// A small text in nvcc's format.
const char* const kPtx =
    "//\n"
    "// Compiler Build ID: CL-36424714\n"
    "//\n"
    "\n"
    ".version 9.0\n"
    ".target sm_80\n"
    ".visible .entry flash_attention()\n"
    "{\n"
    "\t.loc\t1 222 7\n"
    "\tadd.s64 \t%rd172, %rd171, %rd166;\n"
    "\t.loc\t7 491 1, function_name $L__info_string0, inlined_at 3 22 3\n"
    "\t// begin inline asm\n"
    "\tst.global.v2.u16 \t[%rd172], {%rs153, %rs154};\n"
    "\tret;\n"
    "\n"
    "}\n"
    "\t.file\t1 \"/home/reader/kernels/03_tiled.cu\"\n"
    "\t.section\t.debug_str\n"
    "\t{\n"
    "$L__info_string0:\n"
    ".b8 95,90,78,0\n"
    "\n"
    "\t}\n";

TEST(CompiledText, PtxHashLeavesOutWhatNamesFilesAndLines) {
  const std::string hash = ptx_hash(kPtx);
  EXPECT_THAT(hash, testing::MatchesRegex("sha256:[0-9a-f]{64}"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"CL-36424714", "CL-36424715"},
           {"/home/reader", "/home/another/reader"},
           {"1 222 7", "1 230 7"},
           {".b8 95,90,78,0\n", ".b8 95,90,79,0\n.b8 1,2\n"},
           {"\t// begin inline asm\n", ""},
           {"\n\n", "\n"},
           {"\tadd.s64 \t%rd172", "add.s64 %rd172"},
       })
    EXPECT_EQ(ptx_hash(replaced(kPtx, from, to)), hash) << from << " → " << to;
}

TEST(CompiledText, PtxHashSeesEveryInstruction) {
  std::vector<std::string> hashes{ptx_hash(kPtx), ptx_hash("")};
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"%rd166;", "%rd167;"},
           {".v2.u16 \t[%rd172], {%rs153, %rs154}", ".u16 \t[%rd172], %rs153"},
           {"\tret;\n", ""},
           {"sm_80", "sm_90"},
           {"\t}\n", "\t}\n.visible .entry another()\n{\n\tret;\n}\n"},  // after the debugging section
       })
    hashes.push_back(ptx_hash(replaced(kPtx, from, to)));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end()) << "two different texts have the same hash";
}

TEST(CompiledText, SassHashSeesEverything) {
  EXPECT_NE(sass_hash("        /*0000*/ MOV R1, c[0x0][0x28] ;\n"),
            sass_hash("        /*0000*/ MOV R1, c[0x0][0x2c] ;\n"));
}

TEST_F(SourceFiles, HeaderComment) {
  const auto path =
      write("a.cu",
            "// 06 · swizzle\n//\n// Idea        Eight rows start\n//             in one bank.\n"
            "// Changed     smem_offset().\n// Prediction  8x fewer\n//               wavefronts.\n//\n"
            "// Idea that is no paragraph of the header's.\n\n// Idea        Not in the header.\nint a;\n");
  const HeaderComment header = read_header_comment(path);
  EXPECT_EQ(header.idea, "Eight rows start in one bank.");
  EXPECT_EQ(header.changed, "smem_offset().");
  EXPECT_EQ(header.prediction, "8x fewer wavefronts.");
}

TEST_F(SourceFiles, HeaderCommentMayLackParagraphs) {
  const HeaderComment header =
      read_header_comment(write("a.cu", "// Changed     All.\n// Unknown     Words.\n//             More.\nint a;\n"));
  EXPECT_EQ(header.idea, "");
  EXPECT_EQ(header.changed, "All.");
  EXPECT_EQ(header.prediction, "");
}

TEST_F(SourceFiles, CodeLines) {
  const auto path = write("a.cu",
                          "// 06 · swizzle\n\nnamespace v06 {  // six\n\n    int   a = 16;\n/* more\n   words */\n"
                          "const Registration r({\n    .source = \"06\",\n});\n}  // namespace v06\n");
  EXPECT_THAT(code_lines(path),
              ElementsAre("namespace vNN {", "int a = 16;", "const Registration r({", ".source = \"06\",", "});", "}"));
  // An extension's namespace is its name, and does not count as a difference from the version that it extends.
  EXPECT_EQ(code_lines(write("b.cu", "namespace flash_ladder::causal {\nbool causal;\n}\n")),
            code_lines(write("c.cu", "namespace flash_ladder::v16 {\nbool causal;\n}\n")));
}

TEST_F(SourceFiles, DiffSize) {
  const auto a = write("a.cu", "namespace v06 {\nint a;\nint b;\nint c;\n}\n");
  const auto same = write("b.cu", "// new\nnamespace v07 {\n  int a;  // a\n\nint b;\nint c;\n}\n");
  EXPECT_EQ(diff_size(a, same).added, 0);
  EXPECT_EQ(diff_size(a, same).removed, 0);

  // b moves to the front (one line out, one in), c is changed, and d and e are new.
  const auto changed = write("c.cu", "namespace v07 {\nint b;\nint a;\nlong c;\nint d;\nint e;\n}\n");
  EXPECT_EQ(diff_size(a, changed).added, 4);
  EXPECT_EQ(diff_size(a, changed).removed, 2);
  EXPECT_EQ(diff_size(changed, a).added, 2);
  EXPECT_EQ(diff_size(changed, a).removed, 4);

  const auto empty = write("d.cu", "// nothing\n");
  EXPECT_EQ(diff_size(empty, a).added, 5);
  EXPECT_EQ(diff_size(a, empty).removed, 5);
}

TEST_F(SourceFiles, AlignLines) {
  const auto from = numbered_code_lines(write("a.cu", "int a;\n\n// b\nload(b[x]);\nint c;\nint gone;\n"));
  const auto to = numbered_code_lines(write("b.cu", "int a;\nload(b[x ^ 1]);\nint c;\nint d;\nint e;\n"));
  // The load was changed, so it is still the same line; the replacement of `gone` is twice as long.
  EXPECT_THAT(align_lines(from, to), ElementsAre(Pair(1, 1), Pair(4, 2), Pair(5, 3)));
  EXPECT_THAT(align_lines(to, from), ElementsAre(Pair(1, 1), Pair(2, 4), Pair(3, 5)));
  EXPECT_THAT(align_lines(from, from), ElementsAre(Pair(1, 1), Pair(4, 4), Pair(5, 5), Pair(6, 6)));
  EXPECT_THAT(align_lines(from, {}), ElementsAre());
}

// ---- The output of other programs

TEST(ProgramOutput, IsWhatItPrintsAndHowItEnded) {
  const ProgramOutput printed = output_of({"printf", "%s|", "two words", "$HOME", ""});
  EXPECT_EQ(printed.error, 0);
  EXPECT_EQ(printed.status, 0);
  EXPECT_EQ(printed.text, "two words|$HOME||");
  EXPECT_EQ(output_of({"sh", "-c", "echo late; exit 3"}).status, 3);
  EXPECT_EQ(output_of({"sh", "-c", "kill -9 $$"}).status, 128 + 9);
  EXPECT_EQ(output_of({"head", "-c", "1000000", "/dev/zero"}).text.size(), 1'000'000u);
}

TEST(ProgramOutput, SaysWhyAProgramCannotBeStarted) {
  EXPECT_EQ(output_of({"flash-ladder-has-no-such-program"}).error, ENOENT);
  EXPECT_EQ(output_of({"/dev/null"}).error, EACCES);
}

}  // namespace
}  // namespace flash_ladder
