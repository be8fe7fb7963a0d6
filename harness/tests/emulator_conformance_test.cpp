// The conformance suite on the virtual GPU, compared with the results of an H200 (emulator_hardware.json, written by
// emulator-hardware).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "emulator/lanes/lane_table.h"
#include "emulator/operations/operations.h"
#include "emulator_cases.h"
#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

float float_of(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

// The distance of two numbers in units in the last place: the number of steps between them. `magnitude_bits` is the
// width without the sign.
double ulps(std::uint64_t a, std::uint64_t b, int magnitude_bits) {
  const std::uint64_t sign = std::uint64_t{1} << magnitude_bits;
  const auto ordered = [&](std::uint64_t x) {
    const auto magnitude = static_cast<double>(x & (sign - 1));
    return (x & sign) != 0 ? -magnitude : magnitude;
  };
  return std::abs(ordered(a) - ordered(b));
}

bool is_half_nan(std::uint64_t bits) { return (bits & 0x7fff) > 0x7c00; }

bool is_float_close(std::uint64_t got, std::uint64_t expected, double bound, bool absolute) {
  const float x = float_of(got), y = float_of(expected);
  if (std::isnan(y)) return std::isnan(x);
  if (x == y) return true;
  if (std::isinf(y) || std::isinf(x)) return false;
  return absolute ? std::abs(double{x} - double{y}) <= bound : ulps(got, expected, 31) <= bound;
}

bool is_close(const ConformanceCase& one, std::size_t thread, std::uint64_t got, std::uint64_t expected) {
  if (got == expected) return true;
  switch (one.closeness) {
    case Closeness::bits:
      return false;
    case Closeness::bits_or_nan: {
      const auto nan32 = [](std::uint64_t x) { return (x & 0x7fffffff) > 0x7f800000 && x >> 32 == 0; };
      const auto nan64 = [](std::uint64_t x) { return (x & 0x7fffffffffffffff) > 0x7ff0000000000000; };
      return (nan32(got) && nan32(expected)) || (nan64(got) && nan64(expected)) ||
             (got < 0x10000 && expected < 0x10000 && is_half_nan(got) && is_half_nan(expected));
    }
    case Closeness::float_ulps:
      return is_float_close(got, expected, one.bound, false);
    case Closeness::float_absolute:
      return is_float_close(got, expected, one.bound, true);
    case Closeness::float_either:
      return is_float_close(got, expected, one.bound, false) ||
             is_float_close(got, expected, std::ldexp(1.0, -22), true);
    case Closeness::sine:
      return std::abs(float_of(one.input[thread])) > 314 || is_float_close(got, expected, std::exp2(-14.7), true);
    case Closeness::double_ulps:
      return (std::isnan(std::bit_cast<double>(got)) && std::isnan(std::bit_cast<double>(expected))) ||
             ulps(got, expected, 63) <= one.bound;
    case Closeness::half_ulps:
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t x = (got >> (16 * half)) & 0xffff, y = (expected >> (16 * half)) & 0xffff;
        if (is_half_nan(x) != is_half_nan(y) || (!is_half_nan(x) && ulps(x, y, 15) > one.bound)) return false;
      }
      return true;
  }
  return false;
}

std::vector<std::uint64_t> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::uint64_t> words;
  std::uint64_t word;
  while (stream >> std::hex >> word) words.push_back(word);
  return words;
}

std::string operands_of(const ConformanceCase& one, std::size_t thread) {
  std::string text;
  for (std::size_t i = thread; i < one.input.size(); i += one.threads) text += fmt::format(" {:#x}", one.input[i]);
  return text;
}

RunResult run_case(const ConformanceCase& one, const Options& options = {}) {
  return run_test_kernel(one.ptx, one.threads, one.input, std::size_t{one.threads} * one.outputs, options, {one.ctas},
                         one.map, one.map_is_of_output);
}

// The cases that cause an error on the hardware.
std::set<std::string> refused_by_the_hardware() {
  std::ifstream file(FLASH_LADDER_HARDWARE_RESULTS);
  const nlohmann::json recorded = nlohmann::json::parse(file);
  std::set<std::string> names;
  for (const auto& [name, error] : recorded.at("failed").items()) names.insert(name);
  return names;
}

TEST(Conformance, EveryCaseRunsWithoutFinding) {
  const std::set<std::string> refused = refused_by_the_hardware();
  for (const ConformanceCase& one : conformance_cases()) {
    SCOPED_TRACE(one.name);
    const RunResult result = run_case(one);
    if (refused.contains(one.name)) {
      EXPECT_FALSE(result.report.findings.empty()) << "the hardware stops with an error";
      continue;
    }
    EXPECT_EQ(result.report.outcome, Outcome::completed);
    for (const Finding& finding : result.report.findings) ADD_FAILURE() << format(finding);
  }
}

TEST(Conformance, AgreesWithTheHardware) {
  std::ifstream file(FLASH_LADDER_HARDWARE_RESULTS);
  ASSERT_TRUE(file) << "no results of a GPU: run emulator-hardware " << FLASH_LADDER_HARDWARE_RESULTS;
  const nlohmann::json recorded = nlohmann::json::parse(file).at("results");
  std::size_t compared = 0;
  for (const ConformanceCase& one : conformance_cases()) {
    SCOPED_TRACE(one.name);
    if ((one.hopper || one.late) && !recorded.contains(one.name)) continue;  // LateCasesAreRecorded
    ASSERT_TRUE(recorded.contains(one.name))
        << "record the results again: emulator-hardware " << FLASH_LADDER_HARDWARE_RESULTS;
    const std::vector<std::uint64_t> expected = words_of(recorded.at(one.name).get<std::string>());
    const RunResult result = run_case(one);
    ASSERT_EQ(result.output.size(), expected.size());
    int differences = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ++compared;
      const std::size_t number = i / one.threads, thread = i % one.threads;
      if (static_cast<int>(number) == one.unlike || is_close(one, thread, result.output[i], expected[i])) continue;
      if (++differences > 3) continue;
      ADD_FAILURE() << fmt::format("result {} of thread {}: {:#x}, the hardware says {:#x}; operands{}", number, thread,
                                   result.output[i], expected[i], operands_of(one, thread));
    }
  }
  EXPECT_GT(compared, 100'000u);
}

TEST(Conformance, LateCasesAreRecorded) {
  std::ifstream file(FLASH_LADDER_HARDWARE_RESULTS);
  const nlohmann::json recorded = nlohmann::json::parse(file);
  const nlohmann::json failed = recorded.value("failed", nlohmann::json::object());
  std::string missing;
  for (const ConformanceCase& one : conformance_cases())
    if (!recorded.at("results").contains(one.name) && !failed.contains(one.name)) missing += "\n  " + one.name;
  if (!missing.empty())
    GTEST_SKIP() << "cases wait for a GPU, where emulator-hardware FILE --missing records them:" << missing;
}

// Whether things happen late or early, and with or without checks, the result is the same, and there are no findings.
TEST(Conformance, HopperCasesHaveOneResult) {
  const std::set<std::string> refused = refused_by_the_hardware();
  for (const ConformanceCase& one : hopper_cases()) {
    if (refused.contains(one.name)) continue;
    SCOPED_TRACE(one.name);
    const RunResult late = run_case(one), early = run_case(one, {.early_async = true, .print = {}}),
                    unchecked = run_case(one, {.checks = false, .print = {}});
    for (const RunResult* result : {&late, &early, &unchecked}) {
      EXPECT_EQ(result->report.outcome, Outcome::completed);
      for (const Finding& finding : result->report.findings) ADD_FAILURE() << format(finding);
    }
    EXPECT_EQ(late.output, early.output);
    EXPECT_EQ(late.output, unchecked.output);
    const bool writes =
        std::any_of(late.output.begin(), late.output.end(), [](std::uint64_t word) { return word != 0; });
    EXPECT_TRUE(writes || one.name.find("far outside") != one.name.npos);
  }
}

// Everything that the virtual GPU computes lane by lane is tested.
TEST(Conformance, EveryLaneOperationHasACase) {
  std::set<std::string> names;
  for (const ConformanceCase& one : conformance_cases()) EXPECT_TRUE(names.insert(one.name).second) << one.name;
  for (const std::string& opcode : lane_table().opcodes()) {
    const bool predicates = opcode.size() > 5 && opcode.substr(opcode.size() - 5) == ".pred";
    if (is_internal(opcode) || predicates) continue;
    EXPECT_TRUE(names.count(opcode)) << opcode << " has no case";
  }
}

// Hints, fences and pauses, around a store and a load in one thread.
constexpr char kHints[] =
    "createpolicy.fractional.L2::evict_last.b64 %rd1, 1.0;\nprefetch.global.L2 [%rd90];\nprefetchu.L1 [%rd90];\n"
    "applypriority.global.L2::evict_normal [%rd90], 128;\nldu.global.u64 %rd2, [%rd90];\nst.global.u64 [%rd91], %rd2;\n"
    "membar.gl;\nfence.acq_rel.gpu;\nnanosleep.u32 20;\npmevent 1;\nbrkpt;\nld.global.u64 %rd3, [%rd91];\n"
    "add.u64 %rd3, %rd3, 1;\nst.global.u64 [%rd91], %rd3;\n";

TEST(Conformance, HintsChangeNothing) {
  const RunResult result = run_test_kernel(program(kHints), 1, {41}, 1);
  EXPECT_EQ(result.report.outcome, Outcome::completed);
  EXPECT_EQ(result.report.findings_total, 0u);
  EXPECT_EQ(result.output[0], 42u);
}

TEST(Conformance, WhoDropsOutOfAnMbarrierIsNotExpectedAgain) {
  // Out of 64 threads, warp 1 takes part only in the first phase.
  const RunResult result = run_test_kernel(
      program(
          "setp.eq.u32 %p1, %r90, 0;\n@%p1 mbarrier.init.shared.b64 [smem], 64;\nbar.sync 0;\n"
          "setp.eq.u32 %p2, %r92, 1;\n@%p2 bra DROP;\n"
          "mbarrier.arrive.shared.b64 %rd1, [smem];\nW1: mbarrier.test_wait.shared.b64 %p3, [smem], %rd1;\n@!%p3 bra W1;\n"
          "mbarrier.arrive.shared.b64 %rd1, [smem];\nW2: mbarrier.test_wait.shared.b64 %p3, [smem], %rd1;\n@!%p3 bra W2;\n"
          "mov.u64 %rd2, 2;\nst.global.u64 [%rd91], %rd2;\nbra.uni END;\n"
          "DROP: mbarrier.arrive_drop.shared.b64 %rd1, [smem];\nEND:\n"),
      64, {}, 1);
  EXPECT_EQ(result.report.outcome, Outcome::completed);
  EXPECT_EQ(result.output[0], 2u);
}

// Everything that is decoded separately is tested, too. steps(n, count): 0, 1, 2 or 3 halvings of n as in the Collatz
// sequence, with a loop, returns in the middle, a jump table and a nested call. The returned value is in the first half
// of its result, the count in the second.
constexpr const char* kFunctions =
    ".func (.param .b32 result) third(.param .b32 n)\n{\n"
    ".reg .b32 %r<3>;\n.local .b32 kept[2];\n"
    "ld.param.b32 %r1, [n];\nst.local.b32 [kept+4], %r1;\nld.local.b32 %r2, [kept+4];\n"
    "mul.lo.u32 %r2, %r2, 3;\nadd.u32 %r2, %r2, 1;\nst.param.b32 [result], %r2;\nret;\n}\n"
    ".func (.param .align 8 .b8 result[8]) steps(.param .b32 n, .param .align 4 .b8 limit[8])\n{\n"
    ".reg .b32 %r<9>;\n.reg .pred %p<3>;\n"
    "ld.param.b32 %r1, [n];\nld.param.b32 %r2, [limit+4];\nmov.u32 %r3, 0;\n"
    "LOOP:\nst.param.b32 [result], %r1;\nst.param.b32 [result+4], %r3;\n"
    "setp.eq.u32 %p1, %r1, 1;\n@%p1 ret;\nsetp.eq.u32 %p1, %r2, %r3;\n@%p1 bra END;\n"
    "add.u32 %r3, %r3, 1;\nand.b32 %r4, %r1, 1;\n"
    "TABLE: .branchtargets EVEN, ODD;\nbrx.idx %r4, TABLE;\n"
    "EVEN:\nshr.u32 %r1, %r1, 1;\nbra LOOP;\n"
    "ODD:\nsetp.ne.u32 %p2, %r4, 0;\n{\n.param .b32 a;\n.param .b32 b;\nst.param.b32 [a], %r1;\n"
    "@%p2 call (b), third, (a);\nld.param.b32 %r1, [b];\n}\nbra LOOP;\nEND:\n}\n";

TEST(Conformance, CalledFunctions) {
  const std::string call =
      "{\n.param .b32 a;\n.param .align 4 .b8 limit[8];\n.param .align 8 .b8 r[8];\nst.param.b32 [a], %r2;\n"
      "st.param.b32 [limit+4], %r3;\n@!%p1 call (r), steps, (a, limit);\n@!%p1 ld.param.b64 %rd1, [r];\n}\n";
  const std::string store = "mad.wide.u32 %rd2, %r90, 16, %rd91;\nst.global.u64 [%rd2+{}], %rd1;\n";
  const RunResult result = run_test_kernel(
      program("mov.u32 %r3, 1000;\nadd.u32 %r2, %r90, 1;\nmov.u64 %rd1, 77;\nsetp.eq.u32 %p1, %r90, 5;\n" + call +
                  fmt::format(fmt::runtime(store), 0) + "mov.u32 %r3, 4;\nadd.u32 %r2, %r2, 20;\n" + call +
                  fmt::format(fmt::runtime(store), 8),
              kFunctions),
      64, {}, 128);
  EXPECT_EQ(result.report.findings_total, 0u);
  for (std::uint32_t i = 0; i < 64; ++i) {
    const auto expected = [&](std::uint32_t n, std::uint64_t limit) {
      std::uint64_t count = 0;
      for (; n != 1 && count != limit; ++count) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
      return count << 32 | n;
    };
    EXPECT_EQ(result.output[2 * i], i == 5 ? 77 : expected(i + 1, 1000)) << i;
    EXPECT_EQ(result.output[2 * i + 1], i == 5 ? 77 : expected(i + 21, 4)) << i;
  }
}

// (2⁶⁴-1) · 3 + (2⁶⁴-1), in words.
TEST(Conformance, MultiplyAndAddWithCarry) {
  const RunResult result = run_test_kernel(
      program("mov.u32 %r1, 0xffffffff;\nmov.u32 %r2, 3;\n"
              "mad.lo.cc.u32 %r10, %r1, %r2, %r1;\nmadc.hi.cc.u32 %r11, %r1, %r2, %r1;\nmadc.hi.u32 %r12, 0, 0, 0;\n"
              "mad.lo.cc.u32 %r11, %r1, %r2, %r11;\nmadc.hi.u32 %r12, %r1, %r2, %r12;\n"
              "mov.b64 %rd1, {%r10, %r11};\ncvt.u64.u32 %rd2, %r12;\n"
              "st.global.u64 [%rd91], %rd1;\nst.global.u64 [%rd91+8], %rd2;\n"),
      1, {}, 2);
  const auto expected = static_cast<unsigned __int128>(~std::uint64_t{0}) * 4;
  EXPECT_EQ(result.output[0], static_cast<std::uint64_t>(expected));
  EXPECT_EQ(result.output[1], static_cast<std::uint64_t>(expected >> 64));
}

// Instructions that were not run on a GPU: emulator_isa_test.cpp tests them.
const std::set<std::string> kByTheIsa = {"bmsk",      "discard",   "dp2a",  "fns",   "movmatrix", "szext",  "wmma",
                                         "vabsdiff2", "vabsdiff4", "vadd2", "vadd4", "vavrg2",    "vavrg4", "vmax2",
                                         "vmax4",     "vmin2",     "vmin4", "vset2", "vset4",     "vsub2",  "vsub4"};

TEST(Conformance, EveryDecodedInstructionHasACase) {
  std::string texts = kHints;
  for (const ConformanceCase& one : conformance_cases()) texts += one.ptx;
  std::set<std::string> used;  // "ld" for ld.global.u32
  std::istringstream words(texts);
  for (std::string word; words >> word;) used.insert(word.substr(0, word.find_first_of(".;")));
  for (const std::string& name : operation_table().names()) {
    if (name == "call" || name == "trap") continue;  // they end in output on the host, or in a finding: see their tests
    if (kByTheIsa.contains(name)) continue;
    EXPECT_TRUE(used.contains(name)) << name
                                     << " has no case in emulator_cases.cpp; if no GPU has been asked, write one "
                                     << "into emulator_isa_test.cpp, and the name into kByTheIsa";
  }
}

TEST(Conformance, WhatNoGpuWasAskedIsInTheTestByTheIsa) {
  std::ifstream file(FLASH_LADDER_ISA_TEST);
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(source.empty()) << FLASH_LADDER_ISA_TEST;
  for (const std::string& name : kByTheIsa)  // after a quotation mark, or after the n of a line break
    EXPECT_TRUE(std::regex_search(source, std::regex("[\"n]" + name + "\\.")))
        << name << " is not in emulator_isa_test.cpp";
}

}  // namespace
}  // namespace flash_ladder::emulator
