// Each kind of finding, planted in a small kernel, with its line; next to it a correct twin without a finding.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "emulator/function_name.h"
#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr unsigned kThreads = 64;  // two warps

Report report_of(const std::string& body, unsigned threads = kThreads, const Options& options = {}) {
  return run_test_kernel(program(body), threads, std::vector<std::uint64_t>(256), 256, options).report;
}

std::string all(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) text += format(finding) + "\n";
  return text;
}

bool is_at(const SourcePosition& position, int line) {
  return position.size() == 1 && position[0] == SourceLine{"/somewhere/kernel.cu", line};
}

// Only findings of this kind, one of them at this line of the body.
void expect_finding(const Report& report, FindingKind kind, int line) {
  bool found = false;
  for (const Finding& finding : report.findings) {
    EXPECT_EQ(finding.kind, kind) << all(report);
    found |= is_at(finding.position, line);
  }
  EXPECT_TRUE(found) << "none at line " << line << ":\n" << all(report);
}

// A race between these two lines, in either order, and perhaps other findings.
void expect_race(const Report& report, int line, int other_line) {
  bool found = false;
  for (const Finding& finding : report.findings) {
    if (finding.kind != FindingKind::race || !finding.other) continue;
    found |= is_at(finding.position, line) && is_at(finding.other->position, other_line);
    found |= is_at(finding.position, other_line) && is_at(finding.other->position, line);
  }
  EXPECT_TRUE(found) << all(report);
}

void expect_clean(const Report& report) {
  EXPECT_EQ(report.outcome, Outcome::completed);
  EXPECT_EQ(report.findings_total, 0u) << all(report);
}

void expect_other(const Report& report, int line, int warp) {
  ASSERT_FALSE(report.findings.empty());
  ASSERT_TRUE(report.findings[0].other.has_value());
  ASSERT_FALSE(report.findings[0].other->position.empty());
  EXPECT_EQ(report.findings[0].other->position[0].line, line) << all(report);
  EXPECT_EQ(report.findings[0].other->warp, warp) << all(report);
}

// ---- Bounds

TEST(Findings, GlobalLoadPastTheEnd) {
  // The input has 256 words, and then one more.
  const Report report = report_of("mad.wide.u32 %rd1, %r90, 8, %rd90;\nld.global.u64 %rd2, [%rd1+2000];\n");
  expect_finding(report, FindingKind::out_of_bounds, 2);
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.warp, 0);
  EXPECT_EQ(finding.lane, 7);  // 7 · 8 + 2000 = 2056
  EXPECT_EQ(finding.count, 57u) << "one for each lane from 7 on, in both warps";
  EXPECT_THAT(finding.message, HasSubstr("0 bytes after the end of the allocation of 2056 bytes"));
  EXPECT_EQ(finding.instruction, "ld.global.u64 %rd2, [%rd1+2000]");
  expect_clean(report_of("mad.wide.u32 %rd1, %r90, 8, %rd90;\nld.global.u64 %rd2, [%rd1+1544];\n"));
}

TEST(Findings, GlobalStoreBeforeTheBeginning) {
  expect_finding(report_of("st.global.u32 [%rd91+-4], %r90;\n"), FindingKind::out_of_bounds, 1);
}

TEST(Findings, NullPointer) {
  const Report report = report_of("mov.u64 %rd1, 0;\nld.global.u32 %r1, [%rd1];\n");
  expect_finding(report, FindingKind::out_of_bounds, 2);
  EXPECT_THAT(report.findings[0].message, HasSubstr("the null pointer"));
}

TEST(Findings, AccessThatCrossesTheEnd) {
  // Its first bytes are in bounds.
  expect_finding(report_of("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd90+2048];\n"), FindingKind::out_of_bounds, 1);
}

TEST(Findings, SharedOutOfBounds) {
  const Report report = report_of("mov.u32 %r1, 0;\nst.shared.u32 [%r94+3900], %r1;\n");
  expect_finding(report, FindingKind::out_of_bounds, 2);
  EXPECT_EQ(report.findings[0].warp, 1);
  EXPECT_EQ(report.findings[0].lane, 49 - 32);  // 49 · 4 + 3900 = 4096
  expect_clean(report_of("mov.u32 %r1, 0;\nst.shared.u32 [%r94+3840], %r1;\n"));
}

// Two adjacent arrays of 64 bytes, followed by dynamic shared memory.
TEST(Findings, OutOfOneSharedArrayIntoAnother) {
  const auto run = [](const std::string& body) {
    return run_test_kernel(program(body, ".shared .align 4 .b8 a[64];\n.shared .align 4 .b8 b[64];\n"), 16, {}, 1)
        .report;
  };
  const std::string address = "mov.u32 %r1, a;\nmad.lo.u32 %r2, %r90, 4, %r1;\n";
  const Report report = run("mov.u32 %r9, 0;\n" + address +
                            "st.shared.u32 [%r2+4], %r9;\nmov.u32 %r3, b;\nst.shared.u32 [%r3+4], %r9;\n");
  expect_finding(report, FindingKind::out_of_bounds, 4);
  EXPECT_EQ(report.findings[0].lane, 15);
  EXPECT_THAT(report.findings[0].message, ContainsRegex(" 0 .* `a`, .* 64 .* byte 0 of `b`"));
  expect_clean(
      run("mov.u32 %r9, 0;\n" + address + "st.shared.u32 [%r2], %r9;\nmov.u32 %r3, b;\nst.shared.u32 [%r3+4], %r9;\n"));
  // Before the beginning; through a pointer that moves; with all lanes of a warp.
  expect_finding(
      run("mov.u32 %r9, 0;\nmov.u32 %r3, b;\nadd.u32 %r3, %r3, -4;\nst.shared.u32 [%r3], %r9;\nst.shared.u32 [a+8], %r9;\nmov.u32 %r1, a;\nst.shared.u32 [%r1+8], %r9;\n"),
      FindingKind::out_of_bounds, 4);
  // An address that may be in either array proves nothing.
  expect_clean(run(
      "mov.u32 %r9, 0;\nsetp.lt.u32 %p1, %r90, 8;\nmov.u32 %r1, a;\nmov.u32 %r3, b;\nselp.u32 %r2, %r1, %r3, %p1;\nst.shared.u32 [%r2+60], %r9;\n"));
}

// The distance between two addresses is a number, and belongs to no array.
TEST(Findings, ADistanceInOneSharedArrayIsAnIndexOfAnother) {
  const auto run = [](const char* index) {
    return run_test_kernel(
               program(fmt::format("mov.u32 %r1, a;\nadd.u32 %r2, %r1, 8;\nmov.u32 %r3, b;\nmov.u64 %rd1, local;\n"
                                   "st.local.u32 [%rd1], %r3;\nld.local.u32 %r4, [%rd1];\n{}\nadd.u32 %r5, %r4, %r6;\n"
                                   "st.shared.u32 [%r5], 0;\n",
                                   index),
                       ".shared .align 4 .b8 a[64];\n.shared .align 4 .b8 b[64];\n"),
               1, {}, 1)
        .report;
  };
  expect_clean(run("sub.u32 %r6, %r2, %r1;"));
  expect_clean(run("setp.eq.u32 %p1, %r2, %r1;\nselp.u32 %r6, 4, 8, %p1;"));
  // It begins in its own array, and ends in the other.
  expect_finding(run_test_kernel(program("mov.u32 %r1, a;\nmov.u32 %r3, b;\nmov.u64 %rd1, 0;\nst.shared.u32 [%r3], 0;\n"
                                         "st.shared.u64 [%r1+56], %rd1;\n",
                                         ".shared .align 8 .b8 a[60];\n.shared .align 4 .b8 b[64];\n"),
                                 1, {}, 1)
                     .report,
                 FindingKind::out_of_bounds, 5);
}

// The form that nvcc generates: one variable that contains two arrays of 32 bytes, either of which an access may refer
// to.
TEST(Findings, OutOfOneLocalArrayIntoAnother) {
  const auto run = [](const std::string& body) {
    return run_test_kernel(
               program(
                   ".local .align 8 .b8 __local_depot0[64]; mov.u64 %rd1, __local_depot0;\ncvta.local.u64 %rd2, %rd1;\n"
                   "add.u64 %rd3, %rd1, 0;\nadd.u64 %rd4, %rd1, 32;\nadd.u64 %rd5, %rd2, 0;\n" +
                   body),
               1, {}, 1)
        .report;
  };
  const Report report = run("st.local.u32 [%rd3+32], %r90;\n");
  expect_finding(report, FindingKind::out_of_bounds, 6);
  EXPECT_THAT(report.findings[0].message, ContainsRegex("at byte 0, .* 32 .*: byte 0 of .* at byte 32"));
  expect_clean(run("st.local.u32 [%rd3+28], %r90;\nst.local.u32 [%rd4], %r90;\nst.local.u32 [%rd1+32], %r90;\n"));
  // Through a generic address; before the beginning.
  expect_finding(run("st.u32 [%rd5+36], %r90;\n"), FindingKind::out_of_bounds, 6);
  expect_finding(run("st.local.u32 [%rd4+-4], %r90;\n"), FindingKind::out_of_bounds, 6);
  // An end pointer, which equals the beginning of the next array, from which the code steps back; and an address that
  // may be in either.
  expect_clean(
      run("add.s64 %rd6, %rd3, 32;\nst.local.u32 [%rd6+-4], %r90;\nsetp.eq.u32 %p1, %r90, 0;\n"
          "selp.b64 %rd7, %rd3, %rd4, %p1;\nst.local.u32 [%rd7+32], %r90;\n"));
}

TEST(Findings, LocalOutOfBounds) {
  expect_finding(report_of("mov.u64 %rd1, local;\nst.local.u32 [%rd1+64], %r90;\n"), FindingKind::out_of_bounds, 2);
  expect_clean(report_of("mov.u64 %rd1, local;\nst.local.u32 [%rd1+60], %r90;\n"));
}

TEST(Findings, AddressOfSharedMemoryUsedAsGlobal) {
  const Report report =
      report_of("cvt.u64.u32 %rd1, %r93;\ncvta.shared.u64 %rd1, %rd1;\nst.global.u32 [%rd1], %r90;\n");
  expect_finding(report, FindingKind::out_of_bounds, 3);
  EXPECT_THAT(report.findings[0].message, HasSubstr("a generic address of shared"));
}

TEST(Findings, Misaligned) {
  expect_finding(report_of("ld.global.u32 %r1, [%rd90+2];\n"), FindingKind::misaligned, 1);
  expect_finding(report_of("st.shared.v2.u32 [%r94], {%r90, %r90};\n"), FindingKind::misaligned, 1);
  expect_finding(report_of("cp.async.cg.shared.global [%r93], [%rd90+8], 16;\ncp.async.wait_all;\n", 1),
                 FindingKind::misaligned, 1);
  expect_clean(report_of("ld.global.u16 %rs1, [%rd90+2];\n"));
}

TEST(Findings, UseAfterFree) {
  Memory memory;
  const Module module(program("ld.global.u32 %r1, [%rd90];\n"), memory);
  const Address freed = memory.allocate(64), output = memory.allocate(64);
  memory.fill(freed, 0, 64);
  const void* arguments[] = {&freed, &output};
  const std::vector<std::byte> parameters = pack_parameters(module.kernel("test"), arguments);
  const LaunchConfig config{.grid = {}, .block = {}, .dynamic_shared_bytes = 0, .parameters = parameters};
  expect_clean(launch(module.kernel("test"), config, memory));
  memory.free(freed);
  expect_finding(launch(module.kernel("test"), config, memory), FindingKind::use_after_free, 1);
}

// ---- Uninitialised memory

TEST(Findings, UninitialisedShared) {
  expect_finding(report_of("ld.shared.u32 %r1, [%r94];\n"), FindingKind::uninitialised_read, 1);
  expect_clean(report_of("st.shared.u32 [%r94], %r90;\nld.shared.u32 %r1, [%r94];\n"));
  // One byte of four.
  expect_finding(
      report_of(
          "cvt.u16.u32 %rs1, %r90;\nst.shared.u16 [%r94], %rs1;\nst.shared.u8 [%r94+2], %rs1;\nld.shared.u32 %r1, [%r94];\n"),
      FindingKind::uninitialised_read, 4);
}

TEST(Findings, UninitialisedLocal) {
  const std::string store = "mov.u64 %rd1, local;\nst.local.u32 [%rd1], %r90;\n";
  expect_finding(report_of(store + "ld.local.u32 %r1, [%rd1+4];\n"), FindingKind::uninitialised_read, 3);
  expect_clean(report_of(store + "ld.local.u32 %r1, [%rd1];\n"));
}

// nvcc loads a variable whose address is taken elsewhere, and selects afterwards: `int v; x = gets(&v) ? v : -1;`
TEST(Findings, UninitialisedLocalThatIsChosen) {
  const auto run = [](const char* chosen) {
    return report_of(fmt::format(
        "mov.u64 %rd1, local;\nsetp.lt.u32 %p1, %r91, 16;\n@%p1 st.local.u32 [%rd1], %r90;\nld.local.u32 %r1, [%rd1];\n"
        "selp.u32 %r2, {}, %p1;\nmad.wide.u32 %rd2, %r90, 8, %rd91;\nst.global.u32 [%rd2], %r2;\n",
        chosen));
  };
  expect_clean(run("%r1, 7"));
  const Report wrong = run("7, %r1");
  expect_finding(wrong, FindingKind::uninitialised_read, 4);
  EXPECT_EQ(wrong.findings[0].lane, 16);
  EXPECT_THAT(wrong.findings[0].message, HasSubstr("local memory that was never written"));
}

// Lanes that call a null pointer end; the others reconverge after the call.
TEST(Findings, LanesMeetBehindACallThroughAPointer) {
  const auto run = [](const char* pointer) {
    return run_test_kernel(
               program(
                   fmt::format(
                       "mov.u64 %rd1, f;\nsetp.lt.u32 %p1, %r91, 16;\nsetp.ne.u32 %p2, %r91, 3;\n@!%p2 mov.u64 %rd1, {};\n"
                       "P: .callprototype _ ();\n@%p1 call %rd1, (), P;\nbar.sync 0;\n",
                       pointer),
                   ".func f ()\n{\nret;\n}\n"),
               kThreads, {}, 1)
        .report;
  };
  expect_clean(run("f"));
  const Report report = run("77");
  EXPECT_THAT(all(report), HasSubstr("invalid_operation: a call of 0x4d, "));
}

TEST(Findings, UninitialisedGlobal) {
  Memory memory;
  const Module module(
      program(
          "mad.wide.u32 %rd1, %r90, 4, %rd90;\nsetp.lt.u32 %p1, %r90, 0; @%p1 st.global.u32 [%rd1], %r90;\nld.global.u32 %r1, [%rd1];\n"),
      memory);
  const Address input = memory.allocate(1024), output = memory.allocate(64);
  const void* arguments[] = {&input, &output};
  const std::vector<std::byte> parameters = pack_parameters(module.kernel("test"), arguments);
  const LaunchConfig config{.grid = {}, .block = {kThreads, 1, 1}, .dynamic_shared_bytes = 0, .parameters = parameters};
  expect_finding(launch(module.kernel("test"), config, memory), FindingKind::uninitialised_read, 3);
  memory.fill(input, 0, 1024);
  expect_clean(launch(module.kernel("test"), config, memory));
  memory.poison(input + 40, 4);
  const Report report = launch(module.kernel("test"), config, memory);
  expect_finding(report, FindingKind::uninitialised_read, 3);
  EXPECT_EQ(report.findings[0].lane, 10);
  EXPECT_EQ(report.findings[0].address, input + 40);
}

TEST(Findings, WhatAKernelWroteIsInitialised) {
  Memory memory;
  const Module module(
      program(
          "mad.wide.u32 %rd1, %r90, 4, %rd90;\nst.global.u32 [%rd1], %r90;\nbar.sync 0;\nxor.b32 %r1, %r90, 32;\nmad.wide.u32 %rd1, %r1, 4, %rd90;\nld.global.u32 %r1, [%rd1];\n"),
      memory);
  const Address input = memory.allocate(1024), output = memory.allocate(64);
  const void* arguments[] = {&input, &output};
  const std::vector<std::byte> parameters = pack_parameters(module.kernel("test"), arguments);
  expect_clean(launch(module.kernel("test"),
                      {.grid = {}, .block = {kThreads, 1, 1}, .dynamic_shared_bytes = 0, .parameters = parameters},
                      memory));
}

// ---- Uninitialised registers

TEST(Findings, UndefinedRegisterThatIsStored) {
  // The code that nvcc generates for `float m; for (…) m = max(m, x);`: the first iteration of the loop reads an
  // uninitialised register.
  const auto body = [](const std::string& before) {
    return before + "\nmov.u32 %r1, 0;\nL:\nmax.u32 %r2, %r2, %r1;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 4;\n" +
           "@%p1 bra L;\nadd.u32 %r3, %r2, 1;\nst.global.u32 [%rd91], %r3;\n";
  };
  const Report report = report_of(body(""));
  expect_finding(report, FindingKind::uninitialised_read, 4);
  expect_other(report, 9, 0);
  EXPECT_EQ(report.findings.size(), 1u) << all(report);
  EXPECT_EQ(report.findings[0].instruction, "max.u32 %r2, %r2, %r1");
  EXPECT_THAT(report.findings[0].message, HasSubstr("what was computed from it is stored"));
  expect_clean(report_of(body("mov.u32 %r2, 0;")));
}

TEST(Findings, UndefinedRegisterThatMatters) {
  // In one instruction: the instruction that reads the value makes it matter.
  for (
      const char* use : {
          "st.shared.u32 [%r94], %r1;",
          "st.global.v2.u32 [%rd91], {%r90, %r1};",
          "ld.global.u32 %r2, [%rd1];",
          "st.global.u32 [%rd1], %r90;",
          "@%p1 bra E;",
          "@%p1 mov.u32 %r2, 1;",
          "atom.shared.add.u32 %r2, [%r1], 1;",
          "cp.async.ca.shared.global [%r1], [%rd90], 4;",
          "cp.async.ca.shared.global [%r94], [%rd90], 4, %r1;",
          "shfl.sync.bfly.b32 %r2, %r90, %r1, 31, -1;",
          "vote.sync.any.pred %p2, %p1, -1;",
          "redux.sync.add.u32 %r2, %r1, -1;",
          "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];",
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r90, %r90}, {%r1}, {%f1, %f2, %f3, %f4};",
          "bar.sync %r1;",
          "brx.idx %r1, T;",
      }) {
    const Report report = report_of(std::string("T: .branchtargets E;\n") + use + "\nE:\n", 32);
    bool found = false;
    for (const Finding& finding : report.findings) {
      found |= finding.kind == FindingKind::uninitialised_read && is_at(finding.position, 2) && !finding.other &&
               finding.message.find("a register that nothing has written") != std::string::npos;
    }
    EXPECT_TRUE(found) << use << "\n" << all(report);
  }
}

TEST(Findings, UndefinedRegisterThatDoesNotMatter) {
  // Each lane stores the value that it has, or one that it received.
  const std::string only_0 = "setp.eq.u32 %p1, %r91, 0;\n@%p1 mov.u32 %r1, %r92;\n";
  const std::string store = "mad.wide.u32 %rd2, %r90, 4, %rd91;\nst.global.u32 [%rd2], %r2;\n";
  for (const char* right : {
           "shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n",             // broadcasts what lane 0 computed
           "selp.u32 %r2, %r1, 7, %p1;\n",                         // not chosen
           "selp.u32 %r3, -1, 0, %p1;\nand.b32 %r2, %r1, %r3;\n",  // cleared
           "selp.u32 %r3, 0, -1, %p1;\nor.b32 %r2, %r3, %r1;\n",   // all bits set
           "mov.u32 %r2, 3;\n@!%p1 bra E;\nadd.u32 %r2, %r1, 1;\nE:\n",
           "add.u32 %r3, %r1, 1;\nmov.u32 %r2, 1;\n",  // the result is not used
           // `if (lane == 0 && x > 7)`, which the compiler turns into one condition
           "setp.gt.u32 %p2, %r1, 7;\nand.pred %p3, %p1, %p2;\nmov.u32 %r2, 0;\n@%p3 mov.u32 %r2, 1;\n",
           "setp.gt.u32 %p2, %r1, 7;\nnot.pred %p4, %p1;\nor.pred %p3, %p2, %p4;\nselp.u32 %r2, 1, 0, %p3;\n",
           // a thread's own array, filled with values that are not used
           "st.local.u32 [local], %r1;\nst.local.u32 [local+4], %r90;\nld.local.u32 %r2, [local+4];\n",
       }) {
    expect_clean(report_of(only_0 + right + store));
  }
  for (const char* wrong : {
           "shfl.sync.idx.b32 %r2, %r1, 1, 31, -1;\n",
           "selp.u32 %r2, 7, %r1, %p1;\n",
           "selp.u32 %r3, -1, 1, %p1;\nand.b32 %r2, %r1, %r3;\n",
           "selp.u32 %r3, 0, 1, %p1;\nor.b32 %r2, %r3, %r1;\n",
           "mov.u32 %r2, 3;\n@%p1 bra E;\nadd.u32 %r2, %r1, 1;\nE:\n",
           "setp.gt.u32 %p2, %r1, 7;\nor.pred %p3, %p1, %p2;\nmov.u32 %r2, 0;\n@%p3 mov.u32 %r2, 1;\n",
           "st.local.u32 [local], %r1;\nld.local.u32 %r2, [local];\n",
       }) {
    const Report report = report_of(only_0 + wrong + store);
    ASSERT_FALSE(report.findings.empty()) << wrong;
    EXPECT_EQ(report.findings[0].kind, FindingKind::uninitialised_read) << all(report);
    EXPECT_GE(report.findings[0].position[0].line, 3) << all(report);
  }
}

// ---- Races

// Thread t writes word t and reads word t ^ k.
std::string exchange(int k, const std::string& between) {
  return "st.shared.u32 [%r94], %r90;\n" + between + "\nxor.b32 %r1, %r90, " + std::to_string(k) +
         ";\nmad.lo.u32 %r1, %r1, 4, %r93;\nld.shared.u32 %r2, [%r1];\n";
}

TEST(Findings, RaceBetweenWarps) {
  // Warp 0 runs first: it reads what warp 1 has not written yet, and warp 1 then writes it.
  const Report report = report_of(exchange(32, ""));
  expect_race(report, 1, 5);
  // One cause: the read is too early, and reads uninitialised memory.
  EXPECT_EQ(report.findings[0].kind, FindingKind::race) << all(report);
  EXPECT_TRUE(is_at(report.findings[0].position, 5) && is_at(report.findings[0].other->position, 1)) << all(report);
  EXPECT_EQ(report.findings[0].warp, 0);
  EXPECT_EQ(report.findings[0].other->warp, 1);
  EXPECT_EQ(report.findings.back().kind, FindingKind::uninitialised_read) << all(report);
  expect_clean(report_of(exchange(32, "bar.sync 0;")));
  expect_clean(report_of(exchange(32, "barrier.sync 3;")));
  expect_clean(report_of(exchange(32, "bar.sync 5, 64;")));
}

TEST(Findings, RaceBetweenLanes) {
  const Report report = report_of(exchange(1, ""));
  expect_finding(report, FindingKind::race, 5);
  expect_other(report, 1, 0);
  EXPECT_EQ(report.findings[0].other->lane, 1);
  EXPECT_EQ(report.findings[0].lane, 0);
  expect_clean(report_of(exchange(1, "bar.warp.sync -1;")));
  expect_clean(report_of(exchange(1, "bar.sync 0;")));
  // A shuffle synchronises lanes, but does not order what they have written.
  expect_finding(report_of(exchange(1, "shfl.sync.bfly.b32 %r3, %r90, 1, 31, -1;")), FindingKind::race, 5);
  // Half of the warp synchronises, which is enough for those that exchange data with each other, but not for the others.
  expect_clean(report_of(
      "st.shared.u32 [%r94], %r90;\nsetp.lt.u32 %p1, %r91, 16;\n@!%p1 bra E;\nbar.warp.sync 0xffff;\nxor.b32 %r1, %r90, 1;\nmad.lo.u32 %r1, %r1, 4, %r93;\nld.shared.u32 %r2, [%r1];\nE:\n"));
  expect_finding(
      report_of(
          "st.shared.u32 [%r94], %r90;\nsetp.lt.u32 %p1, %r91, 16;\n@!%p1 bra E;\nbar.warp.sync 0xffff;\nxor.b32 %r1, %r90, 16;\nmad.lo.u32 %r1, %r1, 4, %r93;\nld.shared.u32 %r2, [%r1];\nE:\n"),
      FindingKind::race, 7);
}

TEST(Findings, WriteAfterRead) {
  // Every thread reads word 0; then thread 40 overwrites it.
  const auto body = [](const std::string& between) {
    return "st.shared.u32 [%r94], %r90;\nbar.sync 0;\nld.shared.u32 %r1, [%r93];\n" + between +
           "\nsetp.eq.u32 %p1, %r90, 40;\n@%p1 st.shared.u32 [%r93], %r90;\n";
  };
  const Report report = report_of(body(""));
  expect_finding(report, FindingKind::race, 6);
  expect_race(report, 3, 6);
  expect_clean(report_of(body("bar.sync 0;")));
  // Lanes of one warp are distinguished, too.
  const auto alone = [](const std::string& between) {
    return "st.shared.u32 [%r94], %r90;\nbar.sync 0;\nshl.b32 %r5, %r92, 7;\nadd.u32 %r5, %r5, %r93;\nld.shared.u32 %r1, [%r5];\n" +
           between + "\nsetp.eq.u32 %p1, %r91, 9;\n@%p1 st.shared.u32 [%r5], %r90;\n";
  };
  expect_finding(report_of(alone("")), FindingKind::race, 8);
  expect_clean(report_of(alone("bar.warp.sync -1;")));
  // Writing an unchanged value hides the mistake from the result, but not from the check.
  const auto same = [](const std::string& between) {
    return "mov.u32 %r1, 7;\nst.shared.u32 [%r94], %r1;\nbar.sync 0;\nld.shared.u32 %r1, [%r93];\n" + between +
           "\nsetp.eq.u32 %p1, %r90, 40;\n@%p1 st.shared.u32 [%r93], %r1;\n";
  };
  expect_finding(report_of(same("")), FindingKind::race, 7);
  expect_clean(report_of(same("bar.sync 0;")));
  // A lane may overwrite what it alone has read.
  expect_clean(report_of(
      "st.shared.u32 [%r94], %r90;\nld.shared.u32 %r1, [%r94];\nadd.u32 %r1, %r1, 1;\nst.shared.u32 [%r94], %r1;\n"));
}

TEST(Findings, WriteAfterWrite) {
  expect_finding(report_of("setp.eq.u32 %p1, %r91, 0;\n@%p1 st.shared.u32 [%r93], %r90;\n"), FindingKind::race, 2);
  expect_clean(report_of("setp.eq.u32 %p1, %r91, 0;\nmov.u32 %r1, 7;\n@%p1 st.shared.u32 [%r93], %r1;\n"));
  // Two lanes of one store.
  expect_finding(report_of("and.b32 %r1, %r90, 15;\nmad.lo.u32 %r1, %r1, 4, %r93;\nst.shared.u32 [%r1], %r90;\n", 32),
                 FindingKind::race, 3);
  expect_clean(report_of("and.b32 %r1, %r90, 15;\nmad.lo.u32 %r2, %r1, 4, %r93;\nst.shared.u32 [%r2], %r1;\n", 32));
  // Neighbours in one word, but with different bytes.
  expect_clean(report_of("cvt.u16.u32 %rs1, %r90;\nadd.u32 %r1, %r90, %r93;\nst.shared.u8 [%r1], %rs1;\n"));
}

TEST(Findings, AtomicsDoNotRaceWithEachOther) {
  const std::string zero = "setp.eq.u32 %p1, %r90, 0;\nmov.u32 %r1, 0;\n@%p1 st.shared.u32 [%r93], %r1;\n";
  expect_clean(
      report_of(zero + "bar.sync 0;\natom.shared.add.u32 %r2, [%r93], 1;\nbar.sync 0;\nld.shared.u32 %r3, [%r93];\n"));
  expect_finding(report_of(zero + "bar.sync 0;\natom.shared.add.u32 %r2, [%r93], 1;\nld.shared.u32 %r3, [%r93];\n"),
                 FindingKind::race, 6);
}

// ---- Asynchronous copies

std::string copy(const std::string& wait, const std::string& read = "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r5];\n") {
  return "mad.lo.u32 %r5, %r90, 16, %r93;\nmad.wide.u32 %rd1, %r90, 16, %rd90;\ncp.async.cg.shared.global [%r5], [%rd1], 16;\ncp.async.commit_group;\n" +
         wait + "\n" + read;
}

TEST(Findings, MissingWait) {
  const Report report = report_of(copy(""));
  expect_finding(report, FindingKind::race, 6);
  expect_other(report, 3, 0);
  EXPECT_THAT(report.findings[0].message, HasSubstr("cp.async is in flight"));
  EXPECT_TRUE(report.findings[0].waits.empty());
  expect_clean(report_of(copy("cp.async.wait_group 0;")));
  expect_clean(report_of(copy("cp.async.wait_all;")));
  expect_finding(report_of(copy("bar.sync 0;")), FindingKind::race, 6);
}

// A wait, but not for this copy: the message "nothing has waited" would be wrong.
TEST(Findings, WaitThatLeavesTheCopyPending) {
  const Report report = report_of(copy("cp.async.wait_group 1;"));
  expect_finding(report, FindingKind::race, 6);
  EXPECT_THAT(report.findings[0].message, HasSubstr("cp.async.wait_group 1 at kernel.cu:5 leaves"));
  ASSERT_EQ(report.findings[0].waits.size(), 1u);
  EXPECT_TRUE(is_at(report.findings[0].waits[0].position, 5));
  EXPECT_EQ(report.findings[0].waits[0].lane, report.findings[0].lane);
}

TEST(Findings, CopyOfAnotherThread) {
  // Both have issued their copies, and warp 1, which continues first, reads what warp 0 copies.
  const std::string read =
      "setp.eq.u32 %p1, %r92, 0;\n@%p1 bra W;\nld.shared.u32 %r1, [%r93];\nW:\ncp.async.wait_group 0;\n";
  const Report report = report_of(copy("bar.sync 0;", read));
  expect_finding(report, FindingKind::race, 8);
  EXPECT_THAT(report.findings[0].message, HasSubstr("another thread, warp 0, lane 0"));
}

TEST(Findings, TwoCopiesToTheSameByte) {
  const std::string body = copy("cp.async.cg.shared.global [%r5+1024], [%rd1], 16;\ncp.async.wait_all;");
  std::string overlapping = body;
  overlapping.replace(overlapping.find("%r5+1024"), 8, "%r5+16");
  expect_clean(report_of(body));
  const Report report = report_of(overlapping);
  ASSERT_FALSE(report.findings.empty());
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.kind, FindingKind::overlapping_copies) << all(report);
  EXPECT_THAT(finding.message, HasSubstr("two copies write the same byte"));
  EXPECT_TRUE(is_at(finding.position, 5) && finding.other && is_at(finding.other->position, 3)) << all(report);
}

TEST(Findings, UncommittedCopy) {
  const std::string body =
      "mad.lo.u32 %r5, %r90, 16, %r93;\nmad.wide.u32 %rd1, %r90, 16, %rd90;\ncp.async.cg.shared.global [%r5], [%rd1], 16;\ncp.async.wait_group 0;\nld.shared.u32 %r1, [%r5];\n";
  const Report report = report_of(body);
  expect_finding(report, FindingKind::race, 5);
  EXPECT_THAT(report.findings[0].message, HasSubstr("no cp.async.commit_group has"));
}

TEST(Findings, WaitWithoutBarrier) {
  const std::string read = "xor.b32 %r6, %r90, 1;\nmad.lo.u32 %r6, %r6, 16, %r93;\nld.shared.u32 %r1, [%r6];\n";
  expect_finding(report_of(copy("cp.async.wait_all;", read)), FindingKind::race, 8);
  expect_clean(report_of(copy("cp.async.wait_all;", "bar.warp.sync -1;\n" + read)));
  expect_clean(report_of(copy("cp.async.wait_all;", "bar.sync 0;\n" + read)));
}

TEST(Findings, CopyOverWhatIsStillRead) {
  const std::string body = copy("cp.async.wait_all;\nbar.sync 0;",
                                "xor.b32 %r6, %r90, 32;\nmad.lo.u32 %r6, %r6, 16, %r93;\nld.shared.u32 %r1, [%r6];\n");
  const std::string again = "cp.async.cg.shared.global [%r5], [%rd1], 16;\ncp.async.wait_all;\n";
  expect_finding(report_of(body + again), FindingKind::race, 10);
  expect_clean(report_of(body + "bar.sync 0;\n" + again));
}

TEST(Findings, CopyFromOutOfBounds) {
  expect_finding(report_of("cp.async.cg.shared.global [%r93], [%rd90+2064], 16;\ncp.async.wait_all;\n", 1),
                 FindingKind::out_of_bounds, 1);
}

// ---- mbarrier

// Warp 0 fills words 0 … 31, and warp 1 reads them after waiting for an mbarrier at smem + 2048.
std::string handover(const std::string& sync_init, const std::string& arrive, const std::string& wait) {
  return "setp.ne.u32 %p1, %r90, 0;\n@!%p1 mbarrier.init.shared.b64 [smem+2048], 32;\n" + sync_init +
         "\nsetp.eq.u32 %p2, %r92, 1;\n@%p2 bra READ;\nst.shared.u32 [%r94], %r90;\n" + arrive +
         "\nbra.uni END;\nREAD:\n" + wait + "\nld.shared.u32 %r1, [%r94+-128];\nEND:\n";
}
constexpr char kArrive[] = "mbarrier.arrive.shared.b64 %rd1, [smem+2048];";
constexpr char kWait[] = "WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 0; @!%p3 bra WAIT;";

TEST(Findings, Mbarrier) {
  expect_clean(report_of(handover("bar.sync 0;", kArrive, kWait)));
  // Lane 0 arrives 32 times: it knows what the others did only after a __syncwarp.
  const std::string elected =
      "@!%p1 mbarrier.arrive.noComplete.shared.b64 %rd1, [smem+2048], 31; @!%p1 mbarrier.arrive.shared.b64 %rd1, [smem+2048];";
  expect_clean(report_of(handover("bar.sync 0;", "bar.warp.sync -1; " + elected, kWait)));
  expect_finding(report_of(handover("bar.sync 0;", elected, kWait)), FindingKind::race, 11);
}

TEST(Findings, MbarrierWithoutWait) { expect_race(report_of(handover("bar.sync 0;", kArrive, "")), 6, 11); }

TEST(Findings, MbarrierWithTheWrongParity) {
  const std::string wait = "WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 1; @!%p3 bra WAIT;";
  const Report report = report_of(handover("bar.sync 0;", kArrive, wait));  // warp 1, which reads, continues first
  expect_race(report, 6, 11);
  ASSERT_FALSE(report.findings.empty());
  const Finding& finding = report.findings[0];
  EXPECT_EQ(finding.kind, FindingKind::race) << all(report);
  ASSERT_EQ(finding.waits.size(), 1u) << all(report);
  EXPECT_TRUE(is_at(finding.waits[0].position, 10)) << all(report);
  EXPECT_EQ(finding.waits[0].warp, 1);
  EXPECT_THAT(finding.waits[0].what, AllOf(HasSubstr("parity 1 "), HasSubstr("byte 2048")));
}

// Warp 0 arrives, but at a different mbarrier from the one at which warp 1 waits.
TEST(Findings, ArrivalAtTheWrongMbarrier) {
  const std::string other = "mbarrier.arrive.shared.b64 %rd1, [smem+2056];";
  const std::string init = "@!%p1 mbarrier.init.shared.b64 [smem+2056], 32; bar.sync 0;";
  const Report report = report_of(handover(init, other, kWait));
  expect_finding(report, FindingKind::deadlock, 10);
  ASSERT_TRUE(report.findings[0].other);
  EXPECT_TRUE(is_at(report.findings[0].other->position, 7)) << all(report);
  EXPECT_THAT(report.findings[0].other->what, HasSubstr("byte 2056"));
}

TEST(Findings, MbarrierWithoutArrival) {
  const Report report = report_of(handover("bar.sync 0;", "", kWait));
  expect_finding(report, FindingKind::deadlock, 10);
  EXPECT_EQ(report.outcome, Outcome::stopped);
  EXPECT_THAT(report.findings[0].message, ContainsRegex("warp 1 .*parity 0.* byte 2048 .* 32 .* 0; warp 0 "));
}

TEST(Findings, DeadlocksSayWhoWaitsForWhat) {
  const auto message = [](const std::string& body, unsigned threads) {
    const Report report = report_of(body, threads);
    return report.findings.empty() ? "" : report.findings.back().message;
  };
  // Lanes 0 … 4 of warp 0 arrive, and lane 3 of warp 1 waits.
  EXPECT_THAT(
      message(handover("bar.sync 0;", "setp.lt.u32 %p4, %r91, 5; @%p4 mbarrier.arrive.shared.b64 %rd1, [smem+2048];",
                       "setp.ne.u32 %p4, %r91, 3; @%p4 bra END;" + std::string(kWait)),
              64),
      AllOf(HasSubstr("lanes 0x00000008"), HasSubstr("32 arrivals"), HasSubstr("received 5, from warp 0")));
  // The second round of a ring: its first phase is complete, its second gets no arrivals.
  EXPECT_THAT(message(handover("bar.sync 0;", kArrive,
                               std::string(kWait) + " AGAIN: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 1; "
                                                    "@!%p3 bra AGAIN;"),
                      64),
              HasSubstr("phase 1 (parity 1)"));
  // Warp 0 is at one barrier, warps 1 and 2 at another, 3 and 5 wait for an mbarrier, 4 has ended.
  EXPECT_EQ(
      message("setp.eq.u32 %p1, %r90, 0;\n@%p1 mbarrier.init.shared.b64 [smem+2048], 7;\nbar.sync 0;\n"
              "setp.eq.u32 %p2, %r92, 0;\n@%p2 bar.sync 1, 64;\nsetp.le.u32 %p3, %r92, 2;\n@%p3 bar.sync 2, 96;\n"
              "setp.eq.u32 %p4, %r92, 4;\n@%p4 exit;\n" +
                  std::string(kWait),
              192),
      "the block cannot continue: warp 0 waits at barrier 1, at which 32 of 64 threads have arrived; warps 1 and 2 wait "
      "at barrier 2, at which 64 of 96 threads have arrived, at kernel.cu:7; warps 3 and 5 wait for phase 0 (parity 0) of "
      "the mbarrier at byte 2048 of shared memory, which expects 7 arrivals and has received 0, at kernel.cu:10; warp 4 "
      "has ended");
}

// Warp 0 fills a stage twice, and warp 1, which should have read it in between, waits for a phase that has already passed.
TEST(Findings, AStageThatIsFilledAgainBeforeItWasRead) {
  // The mbarriers are far away, and next to the stage.
  for (const int at : {2048, 256}) {
    const std::string full = fmt::format("[smem+{}]", at), empty = fmt::format("[smem+{}]", at + 8);
    const auto ring = [&](const std::string& until_empty) {
      return "setp.eq.u32 %p1, %r90, 0;\n@%p1 mbarrier.init.shared.b64 " + full +
             ", 32;\n@%p1 mbarrier.init.shared.b64 " + empty +
             ", 32;\nbar.sync 0;\nsetp.eq.u32 %p2, %r92, 1;\nmov.u32 %r5, 0;\n@%p2 bra READ;\nFILL:\n" + until_empty +
             "st.shared.u32 [%r94], %r90;\nmbarrier.arrive.shared.b64 %rd1, " + full +
             ";\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p3, %r5, 2;\n@%p3 bra FILL;\nbra.uni END;\n"
             "READ:\nmbarrier.test_wait.parity.shared.b64 %p3, " +
             full + ", %r5;\n@!%p3 bra READ;\nld.shared.u32 %r1, [%r94+-128];\nmbarrier.arrive.shared.b64 %rd1, " +
             empty + ";\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p3, %r5, 2;\n@%p3 bra READ;\nEND:\n";
    };
    expect_clean(report_of(
        ring("xor.b32 %r6, %r5, 1; E: mbarrier.test_wait.parity.shared.b64 %p3, " + empty + ", %r6; @!%p3 bra E;\n")));
    const Report report = report_of(ring("mov.u32 %r6, 0;\n"));
    ASSERT_GE(report.findings.size(), 2u) << all(report);
    EXPECT_EQ(report.findings[0].kind, FindingKind::overwritten);
    EXPECT_TRUE(is_at(report.findings[0].position, 10)) << all(report);
    EXPECT_EQ(report.findings[1].kind, FindingKind::deadlock);
  }
}

// Warp 0 waits for phases of the mbarrier at smem + 2048, which warp 1 ends; warp 1 runs first. A parity tells a phase
// from the ones before and after it, but not from those two phases away.
TEST(Findings, AWaitForAParityThatCouldMeanAnotherPhase) {
  const std::string end = "mbarrier.arrive.shared.b64 %rd1, [smem+2048];\n",
                    answer = "mbarrier.arrive.shared.b64 %rd1, [smem+2056];\n";
  const auto wait = [](char label, int at, int parity) {
    return fmt::format("{0}: mbarrier.test_wait.parity.shared.b64 %p3, [smem+{1}], {2}; @!%p3 bra {0};\n", label, at,
                       parity);
  };
  const auto report = [](const std::string& of_0, const std::string& of_1) {
    return report_of(
        "setp.eq.u32 %p1, %r90, 0;\n@%p1 mbarrier.init.shared.b64 [smem+2048], 32;\n@%p1 mbarrier.init"
        ".shared.b64 [smem+2056], 32;\nbar.sync 0;\nsetp.eq.u32 %p2, %r92, 1;\n@%p2 bra SECOND;\n" +
        of_0 + "bra.uni END;\nSECOND:\n" + of_1 + "END:\n");
  };
  const auto expect_at = [](const Report& found, int line, const char* words) {
    expect_finding(found, FindingKind::race, line);
    EXPECT_THAT(all(found), HasSubstr(words));
  };
  expect_clean(report(wait('A', 2048, 0) + answer + wait('B', 2048, 1), end + wait('C', 2056, 0) + end));
  expect_at(report(wait('A', 2048, 1), end + end), 7, "after the end of phase 0: before any");
  expect_at(report(wait('A', 2048, 0), end + end + end), 7, "after the end of phase 1: after phase 0");
  expect_at(report(answer + wait('A', 2048, 0), end + wait('C', 2056, 0) + end), 8, "before the end of phase 1, after");
}

TEST(Findings, MbarrierInitialisationNotSynchronised) {
  expect_finding(report_of(handover("", kArrive, kWait)), FindingKind::race, 7);
}

TEST(Findings, MbarrierNotInitialised) {
  const Report report = report_of(
      "mov.u64 %rd2, 0;\nst.shared.u64 [smem+2048], %rd2;\nmbarrier.arrive.shared.b64 %rd1, [smem+2048];\n", 1);
  expect_finding(report, FindingKind::invalid_operation, 3);
}

TEST(Findings, MbarrierWithTooManyArrivals) {
  expect_finding(
      report_of(
          "mbarrier.init.shared.b64 [smem+2048], 2;\nmbarrier.arrive.noComplete.shared.b64 %rd1, [smem+2048], 2;\n", 1),
      FindingKind::invalid_operation, 2);
}

TEST(Findings, CopiesCompletedByAnMbarrier) {
  const auto body = [](const std::string& arrive, const std::string& wait) {
    return "setp.ne.u32 %p1, %r90, 0;\n@!%p1 mbarrier.init.shared.b64 [smem+2048], 64;\nbar.sync 0;\nmad.lo.u32 %r5, %r90, 16, %r93;\nmad.wide.u32 %rd1, %r90, 16, %rd90;\ncp.async.cg.shared.global [%r5], [%rd1], 16;\n" +
           arrive + "\n" + wait +
           "\nxor.b32 %r6, %r90, 63;\nmad.lo.u32 %r6, %r6, 16, %r93;\nld.shared.u32 %r1, [%r6];\n";
  };
  const std::string arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [smem+2048];";
  expect_clean(report_of(body(arrive, kWait)));
  expect_finding(report_of(body(arrive, "bar.sync 0;")), FindingKind::race, 11);
  // An arrival of the threads does not cover their copies.
  expect_finding(report_of(body(kArrive, kWait)), FindingKind::race, 11);
}

TEST(Findings, RacesAreFoundHoweverLongAgo) {
  // Thread 0 writes word 0. Both warps make 600,000 accesses to their own words, in the middle of which warp 0 arrives
  // at a barrier. Then warp 1 waits at the barrier and reads word 0, and perhaps warp 0's own words.
  const auto run = [](const std::string& arrive, const std::string& wait, const std::string& more = "") {
    const std::string access = "ld.shared.u32 %r2, [%r94+128]; st.shared.u32 [%r94+128], %r2;";
    const auto loop = [&](const std::string& label) {
      return "\nmov.u32 %r1, 0;\n" + label + ":\n" + access + access + access +
             "\nadd.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 50000; @%p3 bra " + label + ";\n";
    };
    return report_of(
        "setp.eq.u32 %p1, %r90, 0;\nsetp.eq.u32 %p2, %r92, 0;\n@%p1 mbarrier.init.shared.b64 [smem+2048], 64;\n"
        "bar.sync 0;\nst.shared.u32 [%r94+128], %r90;\n@%p1 st.shared.u32 [%r93], %r90;" +
        loop("L") + "@!%p2 bra PAST;\n" + arrive + "\nPAST:" + loop("M") + "@%p2 bra END;\n" + wait +
        "\nld.shared.u32 %r3, [%r93];\n" + more + "\nEND:\n");
  };
  constexpr int kRead = 20;
  const Report report = run("", "");
  expect_finding(report, FindingKind::race, kRead);
  expect_other(report, 6, 0);
  // Throughout, barriers distinguish accesses before an arrival from accesses after it.
  const auto expect_only_own = [](const Report& found) {
    expect_finding(found, FindingKind::race, kRead + 1);
    for (const Finding& finding : found.findings) EXPECT_FALSE(is_at(finding.position, kRead)) << all(found);
  };
  const std::string read_own = "ld.shared.u32 %r3, [%r94];";
  expect_only_own(run("bar.arrive 1, 64;", "bar.sync 1, 64;", read_own));
  const std::string arrive = "mbarrier.arrive.shared.b64 %rd1, [smem+2048];";
  expect_only_own(run(arrive, arrive + kWait, read_own));
}

TEST(Findings, RacesAreFoundWhateverWasReadSince) {
  // Warp 1 reads words 0 to 31, and then makes `count` reads of other words: with a factor other than 0, each in a
  // different order of lanes. Warp 0 makes twice as many reads, and then writes words 0 to 31.
  const auto run = [](int count, const std::string& factor, const std::string& between) {
    return report_of(
        "st.shared.u32 [%r94], %r90;\nbar.sync 0;\nsetp.eq.u32 %p2, %r92, 0;\nmov.u32 %r5, 0;\nmov.u32 %r7, " +
        std::to_string(count) + ";\n@%p2 mov.u32 %r5, 10000;\n@%p2 mad.lo.u32 %r7, %r7, 2, %r5;\n" +
        "@!%p2 ld.shared.u32 %r1, [%r94+-128];\n"
        "L:\nadd.u32 %r5, %r5, 1;\nadd.u32 %r6, %r91, 1;\nmul.lo.u32 %r6, %r6, %r5;\n"
        "mul.lo.u32 %r6, %r6, " +
        factor +
        ";\nshr.u32 %r6, %r6, 27;\nmad.lo.u32 %r6, %r6, 4, %r93;\n"
        "ld.shared.u32 %r1, [%r6+128];\nsetp.lt.u32 %p3, %r5, %r7;\n@%p3 bra L;\n" +
        between + "\n@%p2 st.shared.u32 [%r94], %r90;\n");
  };
  for (const auto& [count, factor] : {std::pair(700, "0x9e3779b1"), std::pair(3000, "0")}) {
    const Report report = run(count, factor, "");
    expect_finding(report, FindingKind::race, 20);
    expect_other(report, 8, 1);
    expect_clean(run(count, factor, "bar.sync 0;"));
  }
}

TEST(Findings, ColumnsOfWarpsSideBySideAreNoRace) {
  // Out of four rows of 16 words, warp 1 reads the first eight columns, and warp 0 writes eight columns starting at
  // this one.
  const auto run = [](int column, const std::string& before) {
    return report_of(
        "shr.u32 %r5, %r91, 3;\nand.b32 %r6, %r91, 7;\nmad.lo.u32 %r5, %r5, 16, %r6;\n"
        "mad.lo.u32 %r5, %r5, 4, %r93;\n" +
        before + "\nst.shared.u32 [%r94], %r90;\nbar.sync 0;\nsetp.eq.u32 %p2, %r92, 0;\n" +
        "@%p2 bra WRITE;\nld.shared.u32 %r1, [%r5];\nbra.uni END;\nWRITE:\nst.shared.u32 [%r5+" +
        std::to_string(4 * column) + "], %r90;\nEND:\n");
  };
  // With mbarriers, the check also looks at whether overwritten data have been read.
  const std::string with_mbarrier = "setp.eq.u32 %p1, %r90, 0; @%p1 mbarrier.init.shared.b64 [smem+2048], 32;";
  for (const std::string& before : {std::string(), with_mbarrier}) {
    expect_clean(run(8, before));
    const Report report = run(7, before);
    expect_finding(report, FindingKind::race, 13);
    expect_other(report, 10, 1);
    EXPECT_EQ(report.findings[0].lane, 0);
    EXPECT_EQ(report.findings[0].other->lane, 7);
  }
}

// ---- Barriers

TEST(Findings, DivergentBarrier) {
  const Report report = report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 bra E;\nbar.sync 0;\nE:\n");
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].kind, FindingKind::divergent_barrier) << all(report);
  EXPECT_EQ(report.findings[0].position[0].line, 3);
  EXPECT_EQ(report.findings[0].lane, 0);
  EXPECT_THAT(report.findings[0].message, HasSubstr("they diverged at kernel.cu:2"));
  expect_clean(report_of("setp.lt.u32 %p1, %r90, 99;\n@!%p1 bra E;\nbar.sync 0;\nE:\n"));
}

TEST(Findings, ThreadsThatEndWithoutComingToABarrier) {
  // Lanes of a warp, and then whole warps only. A barrier with a count is not for all threads.
  for (const char* threads : {"40", "32"}) {
    const std::string leave = fmt::format("setp.lt.u32 %p1, %r90, {};\n@%p1 exit;\n", threads);
    const Report report = report_of(leave + "bar.sync 0;\n");
    expect_finding(report, FindingKind::divergent_barrier, 3);
    EXPECT_EQ(report.outcome, Outcome::completed);
    expect_clean(report_of(leave + "bar.sync 1, 32;\n"));
  }
  expect_finding(report_of("setp.lt.u32 %p1, %r92, 1;\n@%p1 bar.sync 0;\n"), FindingKind::divergent_barrier, 2);
}

// Warp 1 skips the barrier, and so reads what warp 0 has written too early; the barrier is checked when warp 1 has ended.
TEST(Findings, ABarrierThatIsMissedComesBeforeTheRacesThatFollow) {
  const std::string read = "xor.b32 %r1, %r90, 32;\nmad.lo.u32 %r1, %r1, 4, %r93;\nld.shared.u32 %r2, [%r1];\n";
  const Report report =
      report_of("st.shared.u32 [%r94], %r90;\nsetp.eq.u32 %p1, %r92, 1;\n@%p1 bra PAST;\nbar.sync 0;\nPAST:\n" + read);
  expect_race(report, 1, 8);
  EXPECT_EQ(report.findings[0].kind, FindingKind::divergent_barrier) << all(report);
  EXPECT_EQ(report.findings[0].position[0].line, 4);
  EXPECT_THAT(report.findings[0].message, HasSubstr("32 of the block's 64 threads"));
  expect_clean(report_of("st.shared.u32 [%r94], %r90;\nbar.sync 0;\n" + read));
}

TEST(Findings, RacesBetweenWarpsComeBeforeThoseInsideOne) {
  // Races inside the warps first and, after a barrier, between them. The limit keeps the first ones in this order, not
  // in order of time.
  const std::string body = exchange(1, "") + "bar.sync 0;\n" + exchange(32, "");
  Options options;
  for (const std::size_t most : {100, 1}) {
    options.max_findings = most;
    const Report report = report_of(body, kThreads, options);
    ASSERT_FALSE(report.findings.empty());
    EXPECT_TRUE(is_at(report.findings[0].position, 7)) << all(report);
    EXPECT_NE(report.findings[0].warp, report.findings[0].other->warp) << all(report);
    EXPECT_EQ(report.findings.size(), std::min<std::size_t>(most, 3)) << all(report);
    EXPECT_EQ(report.findings_kinds, 3u);
  }
  expect_clean(report_of(exchange(1, "bar.warp.sync -1;") + "bar.sync 0;\n" + exchange(32, "bar.sync 0;")));
}

TEST(Findings, MasksThatDiffer) {
  const std::string own_half = "setp.lt.u32 %p1, %r91, 16;\nselp.u32 %r1, 0xffff, 0xffff0000, %p1;\n";
  const std::string all_or_half = "setp.lt.u32 %p1, %r91, 16;\nselp.u32 %r1, 0xffffffff, 0xffff0000, %p1;\n";
  for (const char* exchange : {"vote.sync.any.pred %p2, %p1, %r1;\n", "vote.sync.ballot.b32 %r2, %p1, %r1;\n",
                               "bar.warp.sync %r1;\n", "shfl.sync.bfly.b32 %r2|%p2, %r91, 1, 31, %r1;\n",
                               "match.any.sync.b32 %r2, %r91, %r1;\n", "redux.sync.add.u32 %r2, %r91, %r1;\n"}) {
    expect_clean(report_of(own_half + exchange));
    expect_finding(report_of(all_or_half + exchange), FindingKind::missing_lanes, 3);
  }
  // Lane 0 reads from lane 20, which is present, but is not named by its mask.
  expect_finding(report_of(own_half + "shfl.sync.idx.b32 %r2|%p2, %r91, 20, 31, %r1;\n"), FindingKind::missing_lanes,
                 3);
}

// The hardware treats two __syncwarp() calls as one if they have the same mask.
TEST(Findings, LanesThatComeTogetherInTwoBranches) {
  const auto run = [](const std::string& first, const std::string& second) {
    return report_of(
        "setp.lt.u32 %p1, %r91, 16;\nxor.b32 %r1, %r90, 16;\nmad.lo.u32 %r1, %r1, 4, %r93;\n@%p1 bra LOW;\n"
        "st.shared.u32 [%r94], %r90;\n" +
            second + "\nld.shared.u32 %r2, [%r1];\nbra.uni END;\nLOW:\nst.shared.u32 [%r94], %r90;\n" + first +
            "\nld.shared.u32 %r2, [%r1];\nEND:\nmov.u32 %r3, 0;\n",
        32);
  };
  const auto finds = [](const Report& report, FindingKind kind, int line) {
    return std::any_of(report.findings.begin(), report.findings.end(),
                       [&](const Finding& finding) { return finding.kind == kind && is_at(finding.position, line); });
  };
  const std::string together = "bar.warp.sync -1;";
  expect_clean(run(together, together));
  expect_clean(run(together + together, together + together));
  EXPECT_TRUE(finds(run(together, ""), FindingKind::missing_lanes, 11));
  EXPECT_TRUE(finds(run("", together), FindingKind::missing_lanes, 6));
  EXPECT_TRUE(finds(run(together + together, together), FindingKind::missing_lanes, 11));
  // Each half separately.
  const Report halves = run("bar.warp.sync 0xffff;", "bar.warp.sync 0xffff0000;");
  EXPECT_TRUE(finds(halves, FindingKind::race, 7) || finds(halves, FindingKind::race, 12)) << all(halves);
  EXPECT_FALSE(finds(halves, FindingKind::missing_lanes, 11)) << all(halves);
}

TEST(Findings, WarpsAtDifferentBarriers) {
  const Report report =
      report_of("setp.eq.u32 %p1, %r92, 0;\n@%p1 bra A;\nbar.sync 0;\nbra.uni E;\nA:\nbar.sync 0;\nE:\n");
  expect_finding(report, FindingKind::divergent_barrier, 3);
  expect_other(report, 6, 0);
}

TEST(Findings, BarrierThatNobodyElseReaches) {
  const Report report = report_of("setp.eq.u32 %p1, %r92, 0;\n@%p1 bar.sync 1, 64;\n");
  expect_finding(report, FindingKind::deadlock, 2);
  EXPECT_EQ(report.outcome, Outcome::stopped);
  EXPECT_EQ(report.totals, Counters{}) << "the counters of a launch that did not end mean nothing";
}

TEST(Findings, BarrierCounts) {
  expect_finding(report_of("bar.sync 1, 48;\n"), FindingKind::invalid_operation, 1);
  expect_finding(report_of("mov.u32 %r1, 16;\nbar.sync %r1;\n"), FindingKind::invalid_operation, 2);
}

// ---- Shuffles, votes

TEST(Findings, ShuffleWithMissingLanes) {
  const Report report = report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 shfl.sync.bfly.b32 %r1, %r90, 1, 31, -1;\n");
  expect_finding(report, FindingKind::missing_lanes, 2);
  EXPECT_EQ(report.findings[0].lane, 16);
  expect_clean(report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 shfl.sync.bfly.b32 %r1, %r90, 1, 31, 0xffff;\n"));
  expect_finding(report_of("shfl.sync.bfly.b32 %r1, %r90, 1, 31, 0xffff;\n"), FindingKind::missing_lanes, 1);
  // The mask is right, but the value comes from a lane outside it.
  expect_finding(report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 shfl.sync.bfly.b32 %r1, %r90, 16, 31, 0xffff;\n"),
                 FindingKind::missing_lanes, 2);
}

// The second warp has 8 lanes: a mask may name the others, but nothing can be read from them.
TEST(Findings, MasksThatNameLanesThatHaveEnded) {
  constexpr unsigned kFewer = 40;
  for (const char* body :
       {"vote.sync.ballot.b32 %r1, 1, -1;\n", "redux.sync.add.u32 %r1, %r90, -1;\n", "bar.warp.sync -1;\n",
        "match.any.sync.b32 %r1, %r90, -1;\n", "shfl.sync.up.b32 %r1, %r90, 1, 0, -1;\n",
        "setp.ge.u32 %p1, %r91, 20;\n@%p1 exit;\nvote.sync.ballot.b32 %r1, 1, -1;\n"}) {
    SCOPED_TRACE(body);
    expect_clean(report_of(body, kFewer));
  }
  const Report report = report_of("shfl.sync.down.b32 %r1, %r90, 1, 31, -1;\n", kFewer);
  expect_finding(report, FindingKind::missing_lanes, 1);
  EXPECT_EQ(report.findings[0].lane, 7);
  EXPECT_THAT(report.findings[0].message, HasSubstr("reads from lanes that do not"));
}

TEST(Findings, OthersWithMissingLanes) {
  expect_finding(report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 vote.sync.ballot.b32 %r1, %p1, -1;\n"),
                 FindingKind::missing_lanes, 2);
  expect_finding(report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 redux.sync.add.u32 %r1, %r90, -1;\n"),
                 FindingKind::missing_lanes, 2);
  expect_finding(report_of("setp.lt.u32 %p1, %r91, 16;\n@%p1 bar.warp.sync -1;\n"), FindingKind::missing_lanes, 2);
  expect_finding(
      report_of(
          "mov.f32 %f1, 0f00000000; setp.lt.u32 %p1, %r91, 16;\n@%p1 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r90, %r90, %r90, %r90}, {%r90, %r90}, {%f1, %f1, %f1, %f1};\n"),
      FindingKind::missing_lanes, 2);
  expect_finding(
      report_of(
          "st.shared.u32 [%r94], %r90;\nbar.sync 0;\nsetp.lt.u32 %p1, %r91, 16;\n@%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r93];\n"),
      FindingKind::missing_lanes, 4);
}

// ---- Metadata of a sparse matrix

TEST(Findings, MetadataThatNameAnElementTwice) {
  const auto run = [](const char* opcode, const char* metadata, const char* type = "f16", int k = 16) {
    return report_of(
        fmt::format("mov.u32 %r1, 0;\nmov.u32 %r2, 0x44444444;\nsetp.eq.u32 %p1, %r91, 9;\n@%p1 mov.u32 %r2, {};\n"
                    "{}.sync.aligned.m16n8k{}.row.col.f32.{}.{}.f32 {{%r3, %r4, %r5, %r6}}, {{%r1, %r1}}, "
                    "{{%r1, %r1}}, {{%r1, %r1, %r1, %r1}}, %r2, 1;\n",
                    metadata, opcode, k, type, type));
  };
  expect_clean(run("mma.sp", "0x94e8c1d6"));  // in any order
  expect_clean(run("mma.sp::ordered_metadata", "0x94e8c994"));
  const Report twice = run("mma.sp", "0x94e85444");
  expect_finding(twice, FindingKind::invalid_operation, 5);
  EXPECT_EQ(twice.findings[0].lane, 9);
  EXPECT_THAT(twice.findings[0].message, HasSubstr("elements 0b0101 of a chunk of row 2"));
  expect_finding(run("mma.sp::ordered_metadata", "0x14444444"), FindingKind::invalid_operation, 5);
  expect_clean(run("mma.sp", "0x4e4e4e4e", "tf32", 8));
  expect_finding(run("mma.sp", "0x4e4e4e48", "tf32", 8), FindingKind::invalid_operation, 5);
  // Lane 8 has no metadata.
  expect_clean(report_of(
      "mov.u32 %r1, 0;\nmov.u32 %r2, 0x44444444;\nsetp.eq.u32 %p1, %r91, 8;\n@%p1 mov.u32 %r2, 0;\n"
      "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r3, %r4, %r5, %r6}, {%r1, %r1}, {%r1, %r1}, {%r1, %r1, "
      "%r1, %r1}, %r2, 1;\n"));
}

// ---- Loops, traps

TEST(Findings, EndlessLoop) {
  Options options;
  options.max_warp_instructions_per_cta = 10'000;
  const Report report = report_of("mov.u32 %r1, 0;\nL:\nadd.u32 %r1, %r1, 1;\nbra.uni L;\n", kThreads, options);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].kind, FindingKind::endless_loop);
  EXPECT_EQ(report.outcome, Outcome::stopped);
  expect_clean(report_of("mov.u32 %r1, 0;\nL:\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 1000;\n@%p1 bra L;\n",
                         kThreads, options));
}

// Loops that keep changing registers, none of which decides whether the loop ends. The budget would be reached only
// after 20 seconds.
TEST(Findings, EndlessLoopThatChangesRegisters) {
  const std::string random = "mad.lo.u32 %r1, %r1, 1664525, 1013904223;\n";
  const std::string zero = "mov.u32 %r1, 0;\nmov.u32 %r2, 0;\n";
  for (
      const std::string& body : std::vector<std::string>{
          zero + "L:\n" + random + "bra.uni L;\n",
          // The condition does not change; nor does a number that has become so large that adding 1 makes no difference.
          zero + "L:\n" + random + "setp.lt.u32 %p1, %r2, %r90;\n@!%p1 bra L;\n",
          "mov.f32 %f1, 0f4b7fff00;\nL:\nadd.f32 %f1, %f1, 0f3f800000;\nsetp.lt.f32 %p1, %f1, 0f4c000000;\n@%p1 bra L;\n",
          // It reads, but not the value that it waits for.
          zero + "L:\n" + random +
              "and.b32 %r3, %r1, 0xf8;\ncvt.u64.u32 %rd1, %r3;\nadd.u64 %rd1, %rd90, %rd1;\n"
              "ld.global.u32 %r4, [%rd1];\nbra.uni L;\n",
          // It counts its tests.
          zero +
              "L:\nadd.u32 %r1, %r1, 1;\nld.volatile.global.u32 %r3, [%rd90];\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 bra L;\nst.global.u32 [%rd91], %r1;\n",
          // Its result matters after the loop, and to the loop around it.
          zero + "O:\nL:\n" + random +
              "setp.lt.u32 %p1, %r2, 1;\n@%p1 bra L;\nsetp.lt.u32 %p2, %r1, 9;\n@%p2 bra O;\nst.global.u32 [%rd91], %r1;\n",
      }) {
    SCOPED_TRACE(body);
    const Report report = report_of(body);
    ASSERT_EQ(report.findings.size(), 1u) << all(report);
    EXPECT_EQ(report.findings[0].kind, FindingKind::endless_loop);
    EXPECT_THAT(report.findings[0].message, body.find("volatile") == body.npos
                                                ? HasSubstr("nothing that could end it changes")
                                                : HasSubstr("`ld.volatile.global.u32 %r3, [%rd90]` never reads"));
  }
  for (
      const std::string& body : std::vector<std::string>{
          // Until the generator returns a certain number; after many sums in a row; after each of many numbers in memory.
          zero + "L:\n" + random + "add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r1, 0xffff0000;\n@%p1 bra L;\n",
          "mov.f32 %f1, 0f00000000;\nL:\nadd.f32 %f1, %f1, 0f3f800000;\nsetp.lt.f32 %p1, %f1, 0f47800000;\n@%p1 bra L;\n",
          zero + "L:\n" + random +
              "and.b32 %r3, %r2, 0xf8;\ncvt.u64.u32 %rd1, %r3;\nadd.u64 %rd1, %rd90, %rd1;\n"
              "ld.global.u32 %r4, [%rd1];\nadd.u32 %r4, %r4, 1;\nadd.u32 %r2, %r2, %r4;\nsetp.lt.u32 %p1, %r2, 20000;\n@%p1 bra L;\n",
          // The value that it stores changes rarely, and ends the loop.
          zero +
              "mul.wide.u32 %rd2, %r90, 8;\nadd.u64 %rd2, %rd91, %rd2;\nst.global.u32 [%rd2], %r1;\nL:\nadd.u32 %r1, %r1, 1;\n"
              "shr.u32 %r3, %r1, 13;\nst.global.u32 [%rd2], %r3;\nld.global.u32 %r4, [%rd2];\nsetp.lt.u32 %p1, %r4, 3;\n@%p1 bra L;\n",
          // A clock advances.
          "mov.u64 %rd1, %clock64;\nL:\nmov.u64 %rd2, %clock64;\nsub.u64 %rd2, %rd2, %rd1;\nsetp.lt.u64 %p1, %rd2, 20000;\n@%p1 bra L;\n",
      }) {
    SCOPED_TRACE(body);
    expect_clean(report_of(body));
  }
}

// Correct since sm_70: warp 0 waits for what warp 1, which runs later, will do.
TEST(Findings, WarpsThatWaitForEachOther) {
  const std::string prologue =
      "setp.eq.u32 %p9, %r90, 0;\nmov.u32 %r1, 0;\n@%p9 st.shared.u32 [%r93], %r1;\nbar.sync 0;\n"
      "setp.eq.u32 %p2, %r92, 1;\n@%p2 bra RAISE;\n";
  const std::string rest =
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 bra WAIT;\nst.global.u32 [%rd91], %r1;\nbra.uni END;\nRAISE:\nmov.u32 %r2, 7;\n";
  Options options;
  options.max_warp_instructions_per_cta = 10'000;
  for (const auto& [look, raise] : {
           std::pair{"ld.volatile.shared.u32 %r1, [%r93];", "st.volatile.shared.u32 [%r93], %r2;"},
           std::pair{"atom.shared.add.u32 %r1, [%r93], 0;", "atom.shared.max.u32 %r3, [%r93], %r2;"},
           std::pair{"ld.volatile.global.u32 %r1, [%rd91+8];", "st.volatile.global.u32 [%rd91+8], %r2;"},
       }) {
    const std::string wait = prologue + "WAIT:\n" + look + "\n" + rest;
    const RunResult result = run_test_kernel(program(wait + raise + "\nEND:\n"), kThreads, {}, 2, options);
    expect_clean(result.report);
    EXPECT_EQ(result.output[0], 7u);
    const Report endless = report_of(wait + "END:\n", kThreads, options);
    ASSERT_EQ(endless.findings.size(), 1u) << all(endless);
    EXPECT_EQ(endless.findings[0].kind, FindingKind::endless_loop);
    EXPECT_EQ(endless.findings[0].warp, 0);
  }
}

// Block b waits until block b + 1 has raised its flag; the last one does not wait if `last_raises`.
std::string chain_of_blocks(bool last_raises) {
  return fmt::format(
      "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %nctaid.x;\nadd.u32 %r3, %r1, 1;\nmul.wide.u32 %rd1, %r1, 8;\nadd.u64 %rd1, %rd91, %rd1;\n"
      "setp.ge.u32 %p1, %r3, {};\n@%p1 bra RAISE;\n"
      "WAIT:\nld.volatile.global.u32 %r4, [%rd1+8];\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra WAIT;\n"
      "RAISE:\nmov.u32 %r5, 1;\nst.volatile.global.u32 [%rd1], %r5;\n",
      last_raises ? "%r2" : "99");
}

TEST(Findings, BlocksThatWaitForLaterOnes) {
  Options options;
  options.max_warp_instructions_per_cta = 1'000'000;
  const auto run = [&](bool last_raises) {
    return run_test_kernel(program(chain_of_blocks(last_raises)), kThreads, {}, 16, options, {7, 1, 1});
  };
  const RunResult right = run(true);
  expect_clean(right.report);
  for (int block = 0; block < 7; ++block) EXPECT_EQ(right.output[static_cast<std::size_t>(block)], 1u);

  const Report endless = run(false).report;
  ASSERT_EQ(endless.findings.size(), 1u) << all(endless);
  EXPECT_EQ(endless.findings[0].kind, FindingKind::endless_loop);
  EXPECT_EQ(endless.findings[0].ptx_line > 0 && is_at(endless.findings[0].position, 9), true) << all(endless);
  EXPECT_THAT(endless.findings[0].message, testing::HasSubstr("`ld.volatile.global.u32 %r4, [%rd1+8]`"));
  EXPECT_THAT(endless.findings[0].message, testing::HasSubstr("6 other blocks"));

  options.max_resident_ctas = 3;
  const Report full = run(true).report;
  ASSERT_EQ(full.findings.size(), 1u) << all(full);
  EXPECT_EQ(full.findings[0].kind, FindingKind::endless_loop);
  EXPECT_THAT(full.findings[0].message, testing::HasSubstr("4 blocks have not been started"));
}

// Each lane takes the lock in turn, while the others spin.
TEST(Findings, LanesThatWaitForEachOther) {
  const std::string take =
      "SPIN:\natom.global.cas.b32 %r1, [%rd91], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra SPIN;\nmembar.gl;\n"
      "ld.volatile.global.u32 %r2, [%rd91+8];\nadd.u32 %r2, %r2, 1;\nst.volatile.global.u32 [%rd91+8], %r2;\n";
  Options options;
  options.max_warp_instructions_per_cta = 10'000'000;
  const RunResult right = run_test_kernel(program(take + "membar.gl;\natom.global.exch.b32 %r3, [%rd91], 0;\n"),
                                          kThreads, {}, 2, options, {2, 1, 1});
  expect_clean(right.report);
  EXPECT_EQ(right.output[1], 2 * kThreads);
  const Report kept = run_test_kernel(program(take), kThreads, {}, 2, options).report;
  ASSERT_EQ(kept.findings.size(), 1u) << all(kept);
  EXPECT_EQ(kept.findings[0].kind, FindingKind::endless_loop);
  EXPECT_THAT(kept.findings[0].message,
              testing::HasSubstr("never finds the value that it waits for at byte 0 of the allocation"));
  EXPECT_THAT(kept.findings[0].message, testing::HasSubstr("no thread releases it"));
}

// A lane may sleep for any length of time while others wait at a barrier.
TEST(Findings, SleepingIsNoDeadlock) {
  expect_clean(report_of(
      "setp.ne.u32 %p1, %r92, 0;\n@%p1 bra END;\nmov.u32 %r1, 0;\nL:\nnanosleep.u32 100;\nadd.u32 %r1, %r1, 1;\n"
      "setp.lt.u32 %p2, %r1, 3000;\n@%p2 bra L;\nEND:\nbar.sync 0;\n"));
}

TEST(Findings, ALaunchHasABudget) {
  Options options;
  options.max_warp_instructions = 5000;
  const Report report = run_test_kernel(program("mov.u32 %r1, 0;\n"), 32, {}, 1, options, {1'000'000'000, 1, 1}).report;
  ASSERT_EQ(report.findings.size(), 1u) << all(report);
  EXPECT_EQ(report.findings[0].kind, FindingKind::launch_limits);
  EXPECT_EQ(report.outcome, Outcome::stopped);
  EXPECT_THAT(report.findings[0].message, testing::HasSubstr("1000000000 blocks"));
}

TEST(Findings, AnInterruptionKeepsWhatWasFound) {
  std::atomic<bool> interrupt = false;
  Options options;
  options.interrupt = &interrupt;
  options.threads = 1;
  options.print = [&](std::string_view) {};
  interrupt = true;
  const Report before =
      run_test_kernel(program("st.global.u32 [%rd91+8], %r90;\n"), 32, {}, 1, options, {9, 1, 1}).report;
  EXPECT_TRUE(before.interrupted);
  EXPECT_EQ(before.outcome, Outcome::stopped);
  EXPECT_EQ(before.findings_total, 0u) << "nothing was begun";
}

TEST(Findings, Trap) {
  expect_finding(report_of("setp.eq.u32 %p1, %r90, 33;\n@%p1 trap;\n"), FindingKind::invalid_operation, 2);
}

// ---- Counters by line

// Code that the compiler has moved to a barrier or a wait, which are lines that compute nothing.
TEST(Lines, WhatABarrierIsNotChargedFor) {
  const auto instructions_at = [](const Report& report, int line) {
    std::uint64_t count = 0;
    for (const LineCounters& counted : report.lines) {
      if (is_at(counted.position, line)) count += counted.counters.warp_instructions;
    }
    return count;
  };
  for (const char* barrier :
       {"bar.sync 0;", "bar.warp.sync -1;", "cp.async.wait_all;", "cp.async.commit_group;", "membar.cta;"}) {
    // %r1 is used through %r2 and, in the second case, only in the next iteration.
    const Report report = report_of(
        "mov.u32 %r5, 0;\nmov.u32 %r4, 0;\nL:\nadd.u32 %r1, %r90, 1; " + std::string(barrier) +
            " add.u32 %r2, %r1, 2;\n"
            "add.u32 %r3, %r2, %r4;\n" +
            barrier + " add.u32 %r4, %r3, 1;\n" + "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 10; @%p1 bra L;\n",
        32);
    expect_clean(report);
    EXPECT_EQ(instructions_at(report, 4), 10u) << barrier;
    EXPECT_EQ(instructions_at(report, 5), 40u) << barrier;
    EXPECT_EQ(instructions_at(report, 6), 10u) << barrier;
    EXPECT_EQ(instructions_at(report, 7), 31u) << barrier << " and the end of the kernel";
  }
  // Another line keeps the code placed there, and a barrier keeps the condition under which it is executed.
  const Report report = report_of(
      "add.u32 %r1, %r90, 1; shfl.sync.idx.b32 %r2, %r90, 0, 31, -1; add.u32 %r3, %r1, %r2;\nadd.u32 %r4, %r3, %r1;\n"
      "setp.lt.u32 %p1, %r92, 9; @!%p1 bra E; bar.sync 0;\nE:\n",
      32);
  EXPECT_EQ(instructions_at(report, 1), 3u);
  EXPECT_EQ(instructions_at(report, 2), 1u);
  EXPECT_EQ(instructions_at(report, 3), 3u);
}

// ---- Limits

Report launch_with(std::size_t dynamic_shared_bytes, const Dim3& block, const Options& options,
                   const std::string& declarations = {}) {
  Memory memory;
  const std::string text =
      ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry test()\n" + declarations + "{\nret;\n}\n";
  const Module module(text, memory);
  return launch(module.kernel("test"),
                {.grid = {}, .block = block, .dynamic_shared_bytes = dynamic_shared_bytes, .parameters = {}}, memory,
                options);
}

TEST(Findings, LaunchLimits) {
  const auto refused = [](const Report& report) {
    return report.outcome == Outcome::refused && report.findings.size() == 1 &&
           report.findings[0].kind == FindingKind::launch_limits;
  };
  const auto on = [](int sm, int registers = 0) {
    Options options;
    options.sm = sm;
    options.registers_per_thread = registers;
    return options;
  };
  for (const auto& [sm, kilobytes] : {std::pair{80, 163}, {86, 99}, {89, 99}, {90, 227}}) {
    const std::size_t most = static_cast<std::size_t>(kilobytes) * 1024;
    expect_clean(launch_with(most, {}, on(sm)));
    const Report report = launch_with(most + 1, {}, on(sm));
    EXPECT_TRUE(refused(report));
    EXPECT_THAT(report.findings[0].message, HasSubstr(std::to_string(most)));
  }
  expect_clean(launch_with(0, {1024, 1, 1}, on(80)));
  EXPECT_TRUE(refused(launch_with(0, {1025, 1, 1}, on(80))));
  EXPECT_TRUE(refused(launch_with(0, {32, 32, 2}, on(80))));
  EXPECT_TRUE(refused(launch_with(0, {1, 1, 65}, on(80))));
  EXPECT_TRUE(refused(launch_with(0, {0, 1, 1}, on(80))));
  expect_clean(launch_with(0, {256, 1, 1}, on(80, 255)));
  EXPECT_TRUE(refused(launch_with(0, {288, 1, 1}, on(80, 255)))) << "9 warps of 255 registers do not fit";
  expect_clean(launch_with(0, {128, 1, 1}, on(80), ".maxntid 128, 1, 1\n"));
  EXPECT_TRUE(refused(launch_with(0, {160, 1, 1}, on(80), ".maxntid 128, 1, 1\n")));
  EXPECT_TRUE(refused(launch_with(0, {64, 1, 1}, on(80), ".reqntid 128\n")));
  EXPECT_THROW(launch_with(0, {}, on(75)), std::invalid_argument);
}

// ---- Where, how often

TEST(Findings, NamesHelperAndCallers) {
  const std::string text =
      ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry test(.param .u64 input, .param .u64 output)\n{\n.reg .b32 %r<9>;\n.shared .align 4 .b8 smem[64];\n"
      ".loc 1 40 3\n.loc 1 12 5, function_name $L__a, inlined_at 1 40 3\n.loc 2 7 9, function_name $L__b, inlined_at 1 12 5\nld.shared.u32 %r1, [smem];\nret;\n}\n"
      ".file 1 \"/a/kernel.cu\"\n.file 2 \"/b/helper.h\"\n.section .debug_str\n{\n$L__a:\n.b8 97,0\n$L__b:\n.b8 98,0\n}\n";
  const Report report = run_test_kernel(text, 1, {}, 1).report;
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(to_string(report.findings[0].position), "helper.h:7, called from kernel.cu:12, called from kernel.cu:40");
  EXPECT_EQ(report.findings[0].position[0].file, "/b/helper.h");
}

TEST(Findings, InAFunctionNamesItsCall) {
  const Report report =
      run_test_kernel(program("call f, ();\nmov.u32 %r1, 1;\ncall f, ();\n",
                              ".func f ()\n{\n.reg .b32 %r<9>;\n.shared .align 4 .b8 x[64];\n"
                              ".loc 2 70 9\nld.shared.u32 %r1, [x];\nret;\n}\n.file 2 \"/b/helper.h\"\n"),
                      1, {}, 1)
          .report;
  ASSERT_EQ(report.findings.size(), 2u) << all(report);
  EXPECT_EQ(to_string(report.findings[0].position), "helper.h:70, called from kernel.cu:1");
  EXPECT_EQ(to_string(report.findings[1].position), "helper.h:70, called from kernel.cu:3");
}

TEST(Findings, AreTheSameWithAnyNumberOfThreads) {
  // Block b reads out of bounds if b is odd, and has a race if b is a multiple of 3.
  const std::string text = program(
      "mov.u32 %r1, %ctaid.x;\nrem.u32 %r2, %r1, 2;\nsetp.eq.u32 %p1, %r2, 1;\n@%p1 ld.global.u32 %r3, [%rd90+9000];\nrem.u32 %r2, %r1, 3;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 st.shared.u32 [%r93], %r90;\n");
  std::string first;
  for (const unsigned threads : {1u, 2u, 3u, 8u}) {
    Options options;
    options.threads = threads;
    const Report report = run_test_kernel(text, kThreads, {}, 1, options, {24, 2, 1}).report;
    std::string text_of_all =
        all(report) + std::to_string(report.findings_total) + " " + std::to_string(report.totals.warp_instructions);
    if (first.empty()) first = text_of_all;
    EXPECT_EQ(text_of_all, first) << threads << " threads";
  }
  EXPECT_THAT(first, HasSubstr("kernel test, block (1, 0, 0)"));
}

TEST(Findings, NameTheKernelAsTheProgrammerDoes) {
  EXPECT_EQ(function_name("_ZN12flash_ladder3v0715flash_attentionI6__halfEEv13AttentionArgs"), "flash_attention");
  EXPECT_EQ(function_name("_ZN12_GLOBAL__N_13addEPf"), "add") << "(anonymous namespace)::add(float*)";
  EXPECT_EQ(function_name("f"), "f") << "extern \"C\"; mangled it would be the type float";
}

TEST(Findings, AreCountedBeyondTheLimit) {
  Options options;
  options.max_findings = 1;
  const Report report = report_of("ld.global.u32 %r1, [%rd90+9000];\nld.global.u32 %r1, [%rd90+9000];\n", 32, options);
  EXPECT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings_kinds, 2u);
  EXPECT_EQ(report.findings_total, 64u);
}

TEST(Findings, WithoutChecksOnlyWhatCouldHarmTheHost) {
  Options options;
  options.checks = false;
  expect_clean(report_of(exchange(32, ""), kThreads, options));
  expect_finding(report_of("ld.global.u32 %r1, [%rd90+9000];\n", kThreads, options), FindingKind::out_of_bounds, 1);
  expect_finding(report_of("st.shared.u32 [%r94+4096], %r90;\n", kThreads, options), FindingKind::out_of_bounds, 1);
}

}  // namespace
}  // namespace flash_ladder::emulator
