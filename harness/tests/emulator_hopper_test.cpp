// Possible misuses of wgmma, TMA, mbarriers with bytes and setmaxnreg: each mistake planted in a small kernel, with its
// line. Correct twins are the conformance cases, which run late and early without a finding, and the one at the top here.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kWarpgroup = 128;

// Statements, each line of which is a line of kernel.cu, from 1. They may use %t = tid, %w = warp, %in, %out, %map, %a
// and %b = descriptors of [64][16] f16 at byte 0 and 16,384 of shared memory, %smem, and %p0 = thread 0.
std::string hopper_program(const std::string& body) {
  return ".version 8.0\n.target sm_90a\n.address_size 64\n.file 1 \"kernel.cu\"\n"
         ".visible .entry test(.param .u64 input, .param .u64 output, .param .align 64 .b8 map[128])\n"
         ".maxntid 1024, 1, 1\n.minnctapersm 1\n{\n"
         ".reg .b32 %r<100>;\n.reg .f32 %f<100>;\n.reg .b64 %rd<40>;\n.reg .pred %p<10>;\n.reg .b32 %t, %w, %smem;\n"
         ".reg .b64 %in, %out, %map, %a, %b;\n.shared .align 1024 .b8 smem[40960];\n"
         "mov.u32 %t, %tid.x;\nshr.u32 %w, %t, 5;\nmov.u32 %smem, smem;\nsetp.eq.u32 %p0, %t, 0;\n"
         "ld.param.u64 %in, [input];\ncvta.to.global.u64 %in, %in;\nld.param.u64 %out, [output];\n"
         "cvta.to.global.u64 %out, %out;\nmov.b64 %rd39, map;\ncvta.param.u64 %map, %rd39;\n"
         "shr.u32 %r99, %smem, 4;\ncvt.u64.u32 %rd38, %r99;\nor.b64 %a, %rd38, 0x4000004000010000;\n"
         "add.u64 %rd38, %rd38, 1024;\nor.b64 %b, %rd38, 0x4000004000010000;\n" +
         numbered(body) + "ret;\n}\n";
}

// One statement each.
const std::string kFill =  // A and B: thread t writes 128 bytes of each
    "{ mad.lo.u32 %r98, %t, 128, %smem; mov.u32 %r97, 0x3c003c00; mov.u32 %r96, 0; "
    "FILL: st.shared.v4.b32 [%r98], {%r97, %r97, %r97, %r97}; st.shared.v4.b32 [%r98+16384], {%r97, %r97, %r97, %r97}; "
    "add.u32 %r98, %r98, 16; add.u32 %r96, %r96, 1; setp.lt.u32 %p9, %r96, 8; @%p9 bra FILL; } ";
const std::string kMma =
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %a, %b, 0, 1, 1, 0, 0;\n";
const std::string kMmaOfRegisters =
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, %b, 0, 1, 1, 0;\n";
const std::string kFence = "wgmma.fence.sync.aligned;\n", kCommit = "wgmma.commit_group.sync.aligned;\n",
                  kWait = "wgmma.wait_group.sync.aligned 0;\n";
const std::string kVisible = kFill + "fence.proxy.async; bar.sync 0;\n";
const std::string kUse = "st.global.f32 [%out], %f1;\n";

TensorMap tensor_map() {  // of [16][64] f16 in the input
  TensorMap map{.dimensions = 2, .element_bytes = 2, .swizzle = Swizzle::bytes_128};
  map.sizes = {64, 16};
  map.strides = {2, 128};
  map.box = {64, 8};
  return map;
}
const std::string kBarrier =
    "@!%p0 bra READY; mbarrier.init.shared.b64 [smem+40000], 1; fence.mbarrier_init.release.cluster; READY: bar.sync 0;\n";
const std::string kExpect = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+40000], 1024;\n";
const std::string kLoad =
    "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%map, {0, 4}], "
    "[smem+40000];\n";
const std::string kAsk = "ASK: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+40000], 0; @!%p1 bra ASK;\n";
const std::string kRead = "@%p0 ld.shared.b64 %rd1, [smem]; @%p0 st.global.b64 [%out], %rd1;\n";

const std::string kAnyWords;  // another test has the message: here, its kind and its lines matter

using Run = std::function<Report(const std::string& body, const Options& options)>;

Report report_of(const std::string& body, unsigned threads = kWarpgroup, const Options& options = {}) {
  return run_test_kernel(hopper_program(body), threads, std::vector<std::uint64_t>(512), 512, options, {}, tensor_map())
      .report;
}

std::string all(const Report& report) {
  std::string text;
  for (const Finding& finding : report.findings) text += format(finding) + "\n";
  return text;
}

// Expects that the findings in both modes include one of this kind, at this line, with this text and this line of the
// other side (0: none).
void expect_found(const Run& run, const std::string& body, FindingKind kind, int line, const std::string& says,
                  int other_line = 0) {
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early ? "early" : "late");
    const Report report = run(body, {.early_async = early, .print = {}});
    const auto is_it = [&](const Finding& finding) {
      return finding.kind == kind && finding.message.find(says) != finding.message.npos && !finding.position.empty() &&
             finding.position.back().line == line &&
             (finding.other ? finding.other->position.back().line : 0) == other_line;
    };
    EXPECT_TRUE(std::any_of(report.findings.begin(), report.findings.end(), is_it))
        << "not " << to_string(kind) << " at line " << line << " and " << other_line << ", \"" << says << "\", but:\n"
        << all(report);
  }
}

void expect_found(const std::string& body, FindingKind kind, int line, const std::string& says, int other_line = 0,
                  unsigned threads = kWarpgroup) {
  const auto run = [&](const std::string& text, const Options& options) { return report_of(text, threads, options); };
  expect_found(run, body, kind, line, says, other_line);
}

void expect_clean(const Run& run, const std::string& body) {
  for (const bool early : {false, true}) {
    const Report report = run(body, {.early_async = early, .print = {}});
    EXPECT_EQ(report.outcome, Outcome::completed);
    EXPECT_EQ(report.findings_total, 0u) << all(report);
  }
}

void expect_clean(const std::string& body) {
  expect_clean([](const std::string& text, const Options& options) { return report_of(text, kWarpgroup, options); },
               body);
}

TEST(HopperFindings, NoneInRightPrograms) {
  expect_clean(kVisible + kFence + kMma + kCommit + kWait + kUse);
  // A register of A may be read, and the accumulator of one wgmma may be used by the next one of the same shape.
  expect_clean("mov.b32 %r1, 0; mov.b32 %r2, %r1; mov.b32 %r3, %r1; mov.b32 %r4, %r1;\n" + kVisible + kFence +
               kMmaOfRegisters + kMma + kCommit + "st.global.b32 [%out+8], %r1;\n" + kWait + kUse);
  // An older group is done when only a younger one is left in flight.
  expect_clean(kVisible + kFence + kMma + kCommit +
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f5, %f6, %f7, %f8}, %a, %b, 0, 1, 1, 0, 0;\n" +
               kCommit + "wgmma.wait_group.sync.aligned 1;\n" + kUse + kWait + "st.global.f32 [%out], %f5;\n");
  // One thread of one warp waits and then releases the others, because the group belongs to the whole warpgroup.
  expect_clean(kVisible + kFence + kMma + kCommit + "setp.ne.u32 %p2, %w, 0;\n@%p2 bra OTHERS;\n" + kWait +
               "bar.sync 1, 128;\nbra END;\nOTHERS: bar.sync 1, 128;\n" + kFill + "\n" +
               "wgmma.wait_group.sync.aligned 0;\nEND:\n");
  expect_clean(kBarrier + kExpect + kLoad + kAsk + kRead);
  // More bytes are announced once the load is in flight; a phase may also have no bytes.
  expect_clean(kBarrier + kLoad + kExpect + kAsk + kRead);
  // The thread that starts the store makes visible what others have written, after synchronising with them.
  expect_clean(kFill + "bar.sync 0;\n@!%p0 bra END; fence.proxy.async;\n" +
               "cp.async.bulk.global.shared::cta.bulk_group [%out], [%smem], 512; cp.async.bulk.commit_group;\n" +
               "cp.async.bulk.wait_group 0;\nEND:\n");
}

TEST(HopperFindings, AccumulatorIsReadTooEarly) {
  expect_found(kVisible + kFence + kMma + kCommit + kUse + kWait, FindingKind::in_flight, 5,
               "of the accumulator of a wgmma that is in flight", 3);
  expect_found(kVisible + kFence + kMma + kWait + kUse + kCommit + kWait, FindingKind::in_flight, 5,
               "no wgmma.commit_group has", 3);
  expect_found(kVisible + kFence + kMma + kCommit + "wgmma.wait_group.sync.aligned 1;\n" + kUse + kWait,
               FindingKind::in_flight, 6, "wgmma.wait_group 1 at kernel.cu:5 leaves", 3);
}

TEST(HopperFindings, RegistersAreWrittenTooEarly) {
  expect_found(kVisible + kFence + kMma + kCommit + "mov.f32 %f2, 0f00000000;\n" + kWait + kUse, FindingKind::in_flight,
               5, "a write of a register of the accumulator", 3);
  expect_found("mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0;\n" + kVisible + kFence +
                   kMmaOfRegisters + kCommit + "mov.b32 %r3, 7;\n" + kWait + kUse,
               FindingKind::in_flight, 6, "a write of a register of A", 4);
}

TEST(HopperFindings, NoFenceBeforeWgmma) {
  expect_found(kVisible + kMma + kCommit + kWait + kUse, FindingKind::missing_fence, 2, "before any wgmma.fence");
  expect_found(kVisible + kFence + "mov.f32 %f3, 0f3f800000;\n" + kMma + kCommit + kWait + kUse,
               FindingKind::missing_fence, 4, "a register of the accumulator", 3);
  expect_found(kVisible + kFence + "mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0; mov.b32 %r4, 0;\n" +
                   kMmaOfRegisters + kCommit + kWait + kUse,
               FindingKind::missing_fence, 4, "a register of A", 3);
}

TEST(HopperFindings, WgmmaDoesNotSeeWhatWasWritten) {
  expect_found(kFill + "bar.sync 0;\n" + kFence + kMma + kCommit + kWait + kUse, FindingKind::missing_fence, 3,
               "no fence.proxy.async", 1);
  // A fence before the write, or by a thread that neither writes nor reads, has no effect.
  expect_found("fence.proxy.async;\n" + kFill + "bar.sync 0;\n" + kFence + kMma + kCommit + kWait + kUse,
               FindingKind::missing_fence, 4, "no fence.proxy.async", 2);
}

TEST(HopperFindings, OperandsAreOverwritten) {
  expect_found(kVisible + kFence + kMma + kCommit + "@%p0 st.shared.b32 [%smem], %t;\n" + kWait + kUse,
               FindingKind::race, 3, "nothing orders it after the write", 5);
}

TEST(HopperFindings, OperandsAreNotOrdered) {
  expect_found(kFill + "fence.proxy.async;\n" + kFence + kMma + kCommit + kWait + kUse, FindingKind::race, 3, kAnyWords,
               1);
}

TEST(HopperFindings, WarpsOfAWarpgroupDiffer) {
  expect_found(kVisible + kFence + "setp.eq.u32 %p2, %w, 2;\n@%p2 bra END;\n" + kMma + kCommit + kWait + "END:\n",
               FindingKind::deadlock, 7, "warp 2 has not executed");
  expect_found(kVisible + kFence + "setp.eq.u32 %p2, %w, 2;\n@%p2 add.u64 %a, %a, 2;\n" + kMma + kCommit + kWait + kUse,
               FindingKind::invalid_operation, 5, "the same wgmma together", 5);
  expect_found(kVisible + kFence + "and.b32 %r1, %t, 1; cvt.u64.u32 %rd1, %r1; add.u64 %a, %a, %rd1;\n" + kMma +
                   kCommit + kWait + kUse,
               FindingKind::invalid_operation, 4, "differs between the lanes");
  expect_found(kVisible + kFence + kMma + kCommit + kWait, FindingKind::invalid_operation, 3, "four warps", 0, 64);
}

TEST(HopperFindings, WgmmaIsLeftUnderWay) {
  expect_found(kVisible + kFence + kMma + kCommit, FindingKind::in_flight, 3, "the warp ends");
}

TEST(HopperFindings, OperandOutsideOfSharedMemory) {
  expect_found(kVisible + kFence + "add.u64 %b, %b, 1530;\n" + kMma + kCommit + kWait + kUse,
               FindingKind::out_of_bounds, 4, "an operand of wgmma");
  // Its first 16 bytes are just before the memory; without a swizzle, which would move them.
  expect_found(
      kVisible + kFence + "sub.u64 %a, %a, 1; and.b64 %a, %a, 0x3fffffffffffffff;\n" + kMma + kCommit + kWait + kUse,
      FindingKind::out_of_bounds, 4, "an operand of wgmma reaches byte -16 of");
  // The block has no shared memory.
  const auto without_memory = [](const std::string& body, const Options& options) {
    std::string text = hopper_program(body);
    for (const auto& [from, to] : {std::pair(".shared .align 1024 .b8 smem[40960];\n", ""),
                                   std::pair("mov.u32 %smem, smem;", "mov.u32 %smem, 1024;")}) {
      text.replace(text.find(from), std::string_view(from).size(), to);
    }
    return run_test_kernel(text, kWarpgroup, {}, 8, options, {}, tensor_map()).report;
  };
  expect_found(without_memory, kFence + kMma + kCommit + kWait + kUse, FindingKind::out_of_bounds, 2,
               "the block's 0 bytes of shared memory");
}

TEST(HopperFindings, AccumulatorThatNothingHasWritten) {
  expect_found(kVisible + kFence +
                   "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %a, %b, 1, 1, 1, 0, 0;\n" +
                   kCommit + kWait + kUse,
               FindingKind::uninitialised_read, 3, "a register that nothing has written");
}

TEST(HopperFindings, RegistersOfAThatNothingHasWritten) {
  const std::string three = "mov.b32 %r1, 0; mov.b32 %r2, %r1; mov.b32 %r3, %r1;\n";
  expect_found(three + kVisible + kFence + kMmaOfRegisters + kCommit + kWait + kUse, FindingKind::uninitialised_read, 4,
               "a register that nothing has written");
  // Only in some lanes.
  expect_found(three + "@%p0 mov.b32 %r4, %r1;\n" + kVisible + kFence + kMmaOfRegisters + kCommit + kWait + kUse,
               FindingKind::uninitialised_read, 5, "multiplied by this wgmma");
  expect_clean(three + "mov.b32 %r4, %r1;\n" + kVisible + kFence + kMmaOfRegisters + kCommit + kWait + kUse);
}

TEST(HopperFindings, SwizzlesDiffer) {
  const std::string body = kBarrier + kExpect + kLoad + kAsk + kFill + "fence.proxy.async; bar.sync 0;\n" + kFence;
  // TMA writes first, then the threads: data written by threads may have any layout. In the opposite order TMA
  // determines the layout.
  expect_clean(body + "xor.b64 %a, %a, 0xc000000000000000;\n" + kMma + kCommit + kWait + kUse);
  expect_found(kVisible + kBarrier + kExpect + kLoad + kAsk + kFence + "xor.b64 %a, %a, 0xc000000000000000;\n" + kMma +
                   kCommit + kWait + kUse,
               FindingKind::layout_mismatch, 8, "of A specifies the 64-byte swizzle", 4);
}

TEST(HopperFindings, ALoadIsNotWaitedFor) {
  expect_found(kBarrier + kExpect + kLoad + kRead + kAsk, FindingKind::race, 4, "a load by TMA is in flight", 3);
  expect_found(kBarrier + kExpect + kLoad, FindingKind::in_flight, 3, "the block ends while TMA still writes");
  // The wrong parity: that phase had ended before the barrier was initialised.
  expect_found(kBarrier + kExpect + kLoad +
                   "ASK: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+40000], 1; @!%p1 bra ASK;\n" + kRead,
               FindingKind::race, 5, "it signals phase 0 (parity 0) of the mbarrier at byte 40000", 3);
  const Report report =
      report_of(kBarrier + kExpect + kLoad +
                "ASK: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+40000], 1; @!%p1 bra ASK;\n" + kRead);
  ASSERT_FALSE(report.findings.empty());
  ASSERT_EQ(report.findings[0].waits.size(), 1u) << all(report);
  EXPECT_EQ(report.findings[0].waits[0].position.back().line, 4);
  EXPECT_THAT(report.findings[0].waits[0].what, testing::HasSubstr("parity 1 of the mbarrier at byte 40000"));
}

// The data loaded while their source is overwritten: late, the new data; early, the old data.
TEST(HopperFindings, ALoadIsDoneOnce) {
  const std::string body =
      kBarrier + kExpect + kLoad + "@%p0 mov.u64 %rd2, 7; @%p0 st.global.u64 [%in+512], %rd2;\n" + kAsk + kRead;
  for (const bool early : {false, true}) {
    const RunResult result = run_test_kernel(hopper_program(body), kWarpgroup, std::vector<std::uint64_t>(512), 8,
                                             {.early_async = early, .print = {}}, {}, tensor_map());
    EXPECT_EQ(result.output[0], early ? 0u : 7u);
  }
}

TEST(HopperFindings, BytesAreNotThoseExpected) {
  const auto expect = [](int bytes) {
    return fmt::format("@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+40000], {};\n", bytes);
  };
  expect_found(
      kBarrier + expect(512) + kLoad + kAsk + kRead, FindingKind::transaction_count, 3,
      "TMA brings 1024 bytes for phase 0 of the mbarrier at byte 40000 of shared memory, but expect_tx has announced "
      "512",
      2);
  expect_found(kBarrier + expect(2048) + kLoad + kAsk + kRead, FindingKind::deadlock, 4,
               "and 2048 bytes, of which TMA brings 1024");
  expect_found(kBarrier + kLoad + "@%p0 mbarrier.arrive.shared.b64 %rd1, [smem+40000];\n" + kAsk + kRead,
               FindingKind::transaction_count, 2, "load of 1024 bytes is still in flight");
  expect_found(kBarrier + expect(1 << 20) + kAsk, FindingKind::invalid_operation, 2,
               "a phase can wait for 1048575 at most");
}

TEST(HopperFindings, NoFenceFollowsTheInitialisationOfABarrier) {
  expect_found("@!%p0 bra READY; mbarrier.init.shared.b64 [smem+40000], 1; READY: bar.sync 0;\n" + kExpect + kLoad +
                   kAsk + kRead,
               FindingKind::missing_fence, 3, "no fence.mbarrier_init", 1);
  expect_found(kLoad, FindingKind::invalid_operation, 1, "holds no mbarrier");
}

TEST(HopperFindings, ATransferThatCannotBe) {
  const auto load = [](const std::string& what) { return kBarrier + kExpect + "@%p0 " + what + kAsk; };
  const std::string form = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes";
  const std::string of_2 = fmt::format(fmt::runtime(form), 2), of_3 = fmt::format(fmt::runtime(form), 3);
  expect_found(load(of_3 + " [%smem], [%map, {0, 4, 0}], [smem+40000];\n"), FindingKind::invalid_operation, 3,
               "a 3-dimensional box with a tensor map of 2 dimensions");
  expect_found(load(of_2 + " [%smem+64], [%map, {0, 4}], [smem+40000];\n"), FindingKind::misaligned, 3,
               "not a multiple of 128");
  expect_found(load(of_2 + " [%smem+40448], [%map, {0, 4}], [smem+40000];\n"), FindingKind::out_of_bounds, 3,
               "a copy by TMA of 1024 bytes at byte 40448");
  expect_found(load(of_2 + " [%smem], [%in, {0, 4}], [smem+40000];\n"), FindingKind::invalid_operation, 3,
               "no tensor map at this address");
  const std::string bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
  expect_found(load(bulk + "[%smem], [%in+8], 1024, [smem+40000];\n"), FindingKind::misaligned, 3, "multiples of 16");
  expect_found(load(bulk + "[%smem], [%in+4000], 1024, [smem+40000];\n"), FindingKind::out_of_bounds, 3,
               "an access of 1024 bytes of global memory");
}

TEST(HopperFindings, AStoreMeetsItsSource) {
  const std::string shown = kFill + "fence.proxy.async; bar.sync 0;\n";
  const std::string store =
      "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%out], [%smem], 512;\n@%p0 cp.async.bulk.commit_group;\n";
  const std::string wait = "@%p0 cp.async.bulk.wait_group.read 0;\n";
  expect_clean(shown + store + wait + "@%p0 st.shared.b32 [%smem], %t;\n");
  expect_found(shown + store + "@%p0 st.shared.b32 [%smem], %t;\n" + wait, FindingKind::race, 2,
               "was written while this store by TMA", 4);
  // Another thread does not know that the store has finished reading.
  expect_found(shown + store + wait + "setp.eq.u32 %p2, %t, 64; @%p2 st.shared.b32 [%smem], %t;\n", FindingKind::race,
               5, "nothing orders it after a read", 2);
  expect_clean(shown + store + wait + "bar.sync 0; setp.eq.u32 %p2, %t, 64; @%p2 st.shared.b32 [%smem], %t;\n");
  expect_found(shown + store, FindingKind::in_flight, 2, "the block ends while TMA still reads");
  expect_found(shown + "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%out], [%smem], 512;\n" + wait,
               FindingKind::in_flight, 2, "has not waited");
  expect_found(kFill + "bar.sync 0;\n" + store + wait, FindingKind::missing_fence, 2, "no fence.proxy.async", 1);
}

TEST(HopperFindings, RegistersThatNobodyGivesBack) {
  // 128 threads with 255 registers each.
  expect_found("setmaxnreg.inc.sync.aligned.u32 256;\n", FindingKind::deadlock, 1,
               "for 256 registers per thread instead of 255: the block was launched with 255");
  expect_found("setmaxnreg.dec.sync.aligned.u32 64;\nsetmaxnreg.dec.sync.aligned.u32 128;\n",
               FindingKind::invalid_operation, 2, "setmaxnreg.dec to 128 registers per thread, but the warp has 64");
  expect_clean("setmaxnreg.dec.sync.aligned.u32 64;\nbar.sync 0;\nsetmaxnreg.inc.sync.aligned.u32 248;\n");
}

// ptxas then ignores it, with warning C7508.
TEST(HopperFindings, RegistersOfAKernelWithoutLaunchBounds) {
  std::string text = hopper_program("setmaxnreg.inc.sync.aligned.u32 256;\nsetmaxnreg.dec.sync.aligned.u32 248;\n");
  text.erase(text.find(".minnctapersm 1\n"), std::string_view(".minnctapersm 1\n").size());
  const RunResult result = run_test_kernel(text, kWarpgroup, {}, 8, {}, {}, tensor_map());
  EXPECT_TRUE(result.report.findings.empty());
}

TEST(HopperFindings, AClusterOfOne) {
  expect_found("mapa.shared::cluster.u32 %r1, %smem, 1;\n", FindingKind::invalid_operation, 1,
               "mapa for CTA 1 of a cluster that has 1");
  expect_found("elect.sync %r1|%p1, 0xf0;\n", FindingKind::missing_lanes, 1, "elect.sync");
}

// Two CTAs: each arrives at the other's mbarrier and waits for its own; then rank 0 copies a box to both, and each
// writes it to the output.
std::string cluster_program(const std::string& mask, const std::string& end) {
  return ".version 8.0\n.target sm_90a\n.address_size 64\n"
         ".visible .entry test(.param .u64 input, .param .u64 output, .param .align 64 .b8 map[128])\n"
         ".explicitcluster .reqnctapercluster 2, 1, 1\n{\n.reg .b16 %h<3>;\n.reg .b32 %r<30>;\n.reg .b64 %rd<30>;\n"
         ".reg .pred %p<10>;\n.shared .align 1024 .b8 smem[4096];\n"
         "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %cluster_ctarank;\nmov.u32 %r3, %cluster_nctarank;\nsetp.eq.u32 %p0, %r1, 0;\n"
         "mov.b64 %rd1, map;\ncvta.param.u64 %rd1, %rd1;\nld.param.u64 %rd2, [output];\ncvta.to.global.u64 %rd2, %rd2;\n"
         "mov.u32 %r4, smem;\nadd.u32 %r5, %r4, 4000;\n@!%p0 bra READY;\nmbarrier.init.shared.b64 [smem+4000], 1;\n"
         "mbarrier.init.shared.b64 [smem+4008], 1;\nfence.mbarrier_init.release.cluster;\nREADY:\n"
         "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n"
         "xor.b32 %r6, %r2, 1;\nmapa.shared::cluster.u32 %r7, %r5, %r6;\n"
         "@%p0 mbarrier.arrive.shared::cluster.b64 _, [%r7];\n"
         "W1: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+4000], 0;\n@!%p1 bra W1;\n"
         "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+4008], 1024;\n"
         "setp.eq.and.u32 %p2, %r2, 0, %p0;\nmov.u16 %h1, " +
         mask +
         ";\n@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
         "[%r4], [%rd1, {0, 0}], [smem+4008], %h1;\n"
         "W2: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+4008], 0;\n@!%p1 bra W2;\n"
         "ld.shared.b64 %rd3, [smem+8];\nmul.wide.u32 %rd4, %r2, 16;\nadd.u64 %rd2, %rd2, %rd4;\n"
         "@%p0 st.global.b64 [%rd2], %rd3;\n@%p0 st.global.b32 [%rd2+8], %r3;\n" +
         end + "ret;\n}\n";
}

TEST(HopperClusters, ArriveAtEachOtherAndGetTheSameCopy) {
  std::vector<std::uint64_t> input(512);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = i;
  const std::string text = cluster_program("3", "barrier.cluster.arrive;\nbarrier.cluster.wait;\n");
  const RunResult result = run_test_kernel(text, 64, input, 8, {}, {4, 1, 1}, tensor_map());
  EXPECT_EQ(result.report.outcome, Outcome::completed);
  EXPECT_EQ(result.report.findings_total, 0u) << all(result.report);
  EXPECT_EQ(result.output, (std::vector<std::uint64_t>{1, 2, 1, 2, 0, 0, 0, 0}));
  EXPECT_EQ(result.report.totals.tma_load.bytes, 2u * 1024) << "read once for each cluster";
}

TEST(HopperClusters, WhatCannotBe) {
  const std::string end = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  const auto run = [](const std::string& text, Dim3 grid) {
    return run_test_kernel(text, 64, std::vector<std::uint64_t>(512), 8, {}, grid, tensor_map()).report;
  };
  // Only one of them gets its bytes: the other waits for ever.
  const Report lost = run(cluster_program("1", end), {2, 1, 1});
  EXPECT_THAT(all(lost), testing::HasSubstr("1024 bytes, of which nothing brings any"));
  EXPECT_EQ(lost.outcome, Outcome::stopped);
  EXPECT_THAT(all(run(cluster_program("7", end), {2, 1, 1})), testing::HasSubstr("0x7 of a cluster that has 2"));
  const Report refused = run(cluster_program("3", end), {3, 1, 1});
  EXPECT_EQ(refused.outcome, Outcome::refused);
  EXPECT_THAT(all(refused), testing::HasSubstr("a grid of (3, 1, 1) blocks"));
}

// ---- the shared memory of other CTAs ----

// Like hopper_program(), for clusters of two CTAs of 64 threads. Provides %t = tid, %rank, %peer = the other's rank,
// %p0 = thread 0, %smem, %mine and %theirs = word t of the CTA's own shared memory and of the other CTA's, %there = the
// beginning of the latter, %out = 8 bytes for each thread.
std::string pair_program(const std::string& body, const std::string& cluster = "2, 1, 1") {
  return ".version 8.0\n.target sm_90a\n.address_size 64\n.file 1 \"kernel.cu\"\n"
         ".visible .entry test(.param .u64 input, .param .u64 output, .param .align 64 .b8 map[128])\n"
         ".explicitcluster .reqnctapercluster " +
         cluster +
         "\n{\n.reg .b16 %h<3>;\n.reg .b32 %r<30>;\n.reg .f32 %f<10>;\n.reg .b64 %rd<30>;\n.reg .pred %p<10>;\n"
         ".reg .b32 %t, %rank, %peer, %smem, %mine, %theirs, %there;\n.reg .b64 %out, %map;\n.shared .align 1024 .b8 smem[4096];\n"
         "mov.u32 %t, %tid.x;\nmov.u32 %rank, %cluster_ctarank;\nxor.b32 %peer, %rank, 1;\nsetp.eq.u32 %p0, %t, 0;\n"
         "mov.u32 %smem, smem;\nmad.lo.u32 %mine, %t, 4, %smem;\nmapa.shared::cluster.u32 %theirs, %mine, %peer;\n"
         "mapa.shared::cluster.u32 %there, %smem, %peer;\nmov.b64 %map, map;\ncvta.param.u64 %map, %map;\n"
         "ld.param.u64 %out, [output];\ncvta.to.global.u64 %out, %out;\nmov.u32 %r29, %ctaid.x;\n"
         "mad.lo.u32 %r29, %r29, 64, %t;\nmad.wide.u32 %out, %r29, 8, %out;\n" +
         numbered(body) + "ret;\n}\n";
}

Report report_of_pair(const std::string& body, const Options& options = {}) {
  return run_test_kernel(pair_program(body), 64, std::vector<std::uint64_t>(512), 128, options, {2, 1, 1}, tensor_map())
      .report;
}

void expect_found_in_pair(const std::string& body, FindingKind kind, int line, const std::string& says,
                          int other_line = 0) {
  expect_found(report_of_pair, body, kind, line, says, other_line);
}
void expect_clean_pair(const std::string& body) { expect_clean(report_of_pair, body); }

const std::string kPut = "st.shared.u32 [%mine], %t;\n";
const std::string kMeet = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n";
const std::string kGet = "ld.shared::cluster.u32 %r1, [%theirs]; st.global.u32 [%out], %r1;\n";

TEST(HopperClusters, SharedMemoryOfAnotherCta) {
  const std::string body = "mad.lo.u32 %r2, %rank, 1000, %t; st.shared.u32 [%mine], %r2;\n" + kMeet + kGet + kMeet;
  expect_clean_pair(body);
  const RunResult result = run_test_kernel(pair_program(body), 64, {}, 128, {}, {2, 1, 1}, tensor_map());
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(result.output[i], 1000 + i);
    EXPECT_EQ(result.output[64 + i], i);
  }
  // Through a generic address, and in both directions.
  expect_clean_pair(
      kPut + kMeet +
      "mov.u64 %rd1, smem; cvta.shared.u64 %rd1, %rd1; mul.wide.u32 %rd2, %t, 4; add.u64 %rd1, %rd1, %rd2; mapa.u64 %rd1, %rd1, %peer;\n"
      "ld.u32 %r1, [%rd1]; st.global.u32 [%out], %r1;\n" +
      kMeet + "st.u32 [%rd1], 7;\n" + kMeet + "ld.shared.u32 %r1, [%mine]; st.global.u32 [%out], %r1;\n");
  EXPECT_EQ(run_test_kernel(pair_program(kPut + kMeet + "atom.shared::cluster.add.u32 %r1, [%there], 1;\n" + kMeet +
                                         "ld.shared.u32 %r2, [%smem]; st.global.u32 [%out], %r2;\n"),
                            64, {}, 128, {}, {2, 1, 1}, tensor_map())
                .output[5],
            64u);
}

TEST(HopperClusters, NothingOrdersThemAcrossCtas) {
  expect_found_in_pair(kPut + kGet + kMeet, FindingKind::race, 2, "nothing guarantees that it has begun");
  // They synchronise, but before the write; or without a release.
  expect_found_in_pair(kMeet + kPut + kGet + kMeet, FindingKind::race, 3, "of the cluster", 2);
  const std::string relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\n";
  expect_found_in_pair(kMeet + kPut + relaxed + kGet + kMeet, FindingKind::race, 4, kAnyWords, 2);
  expect_clean_pair(kPut + "fence.acq_rel.cluster; " + relaxed + kGet + kMeet);
  // Read while it is overwritten: the arrival comes before the write, and the wait after it.
  expect_clean_pair(kPut + kMeet + kGet + "barrier.cluster.arrive;\nbarrier.cluster.wait;\n" + kPut + kMeet);
  expect_found_in_pair(
      kPut + kMeet + kGet + "barrier.cluster.arrive;\nst.shared.u32 [%mine], 5;\nbarrier.cluster.wait;\n",
      FindingKind::race, 5, kAnyWords, 3);
  expect_found_in_pair(
      kPut + kMeet + "st.shared::cluster.u32 [%theirs], 5;\nld.shared.u32 %r1, [%mine]; st.global.u32 [%out], %r1;\n" +
          kMeet,
      FindingKind::race, 4, kAnyWords, 3);
  // By one warp, and then released to the other warp of the CTA.
  expect_clean_pair(
      kMeet +
      "setp.lt.u32 %p1, %t, 32; @%p1 st.shared::cluster.u32 [%theirs], 5;\nbar.sync 0;\n@!%p1 st.shared::cluster.u32 "
      "[%theirs+-128], 6;\n" +
      kMeet);
  expect_found_in_pair(
      kMeet +
          "setp.lt.u32 %p1, %t, 32; @%p1 st.shared::cluster.u32 [%theirs], 5;\n@!%p1 st.shared::cluster.u32 "
          "[%theirs+-128], 6;\n" +
          kMeet,
      FindingKind::race, 3, "nothing orders it after the write", 2);
  // Atomic operations do not race with each other, but do race with others.
  expect_found_in_pair(
      kPut + kMeet + "atom.shared::cluster.add.u32 %r1, [%there], 1;\n@%p0 ld.shared.u32 %r2, [%smem];\n" + kMeet,
      FindingKind::race, 4, kAnyWords, 3);
  expect_found_in_pair(kMeet + kGet + kMeet, FindingKind::uninitialised_read, 2, "to which nothing has been written");
}

TEST(HopperClusters, AnArrivalTellsAnotherCta) {
  const std::string init =
      "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 64; @%p0 fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\nadd.u32 %r3, %there, 4000;\n";
  const std::string
      give = "st.shared::cluster.u32 [%theirs], %t;\n",
      arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];\n",
      take =
          "ASK: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [smem+4000], 0; @!%p2 bra ASK;\n"
          "ld.shared.u32 %r1, [%mine]; st.global.u32 [%out], %r1;\n";
  expect_clean_pair(init + give + arrive + take + kMeet);
  expect_found_in_pair(init + arrive + give + take + kMeet, FindingKind::race, 7, kAnyWords, 5);
  // The CTA may have ended by then.
  expect_clean_pair(init + give + arrive + take);
  expect_found_in_pair(init + arrive, FindingKind::in_flight, 4, "an arrival at an mbarrier of CTA");
  // Initialised after the others have passed the cluster barrier.
  expect_found_in_pair(
      "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\nadd.u32 %r3, %there, 4000;\n"
      "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 64; @%p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n" +
          arrive + kMeet,
      FindingKind::race, 5, kAnyWords, 3);
}

TEST(HopperClusters, APeerThatHasEnded) {
  expect_found_in_pair(kPut + kMeet + kGet, FindingKind::in_flight, 3, "of the cluster");
  expect_found_in_pair(kPut + kMeet + "setp.eq.u32 %p1, %rank, 0; @%p1 bra END;\n" + kGet + "END:\n",
                       FindingKind::in_flight, 4, "CTA 0 of the cluster, whose shared memory this");
  // It is enough if one of its threads waits; and the others may end.
  expect_clean_pair(kPut + kMeet + kGet + "setp.ge.u32 %p1, %t, 32; @%p1 bra END;\n" + kMeet + "END:\n");
}

TEST(HopperClusters, TheBarrierIsMisused) {
  expect_found_in_pair("barrier.cluster.arrive;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n",
                       FindingKind::invalid_operation, 2, "has already arrived");
  expect_found_in_pair("barrier.cluster.wait;\n", FindingKind::invalid_operation, 1, "has not arrived there");
}

// TMA fills a buffer of both CTAs while one of them may still be reading it.
TEST(HopperClusters, AMulticastMeetsAReader) {
  const auto body = [](const std::string& meet) {
    return "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster;\n"
           "shl.b32 %r2, %t, 4; add.u32 %r2, %r2, %smem; st.shared.v4.u32 [%r2], {%t, %t, %t, %t};\n" +
           kMeet + "ld.shared.u32 %r1, [%r2]; st.global.u32 [%out], %r1;\n" + meet +
           "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+4000], 1024;\n" + meet +
           "setp.eq.and.u32 %p2, %rank, 0, %p0; mov.u16 %h1, 3;\n"
           "@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%smem], [%map, {0, 0}], "
           "[smem+4000], %h1;\n"
           "ASK: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+4000], 0; @!%p1 bra ASK;\nld.shared.u32 %r1, [%r2];\n" +
           kMeet;
  };
  expect_clean_pair(body(kMeet));
  expect_found_in_pair(body("bar.sync 0;\n"), FindingKind::race, 9, kAnyWords, 4);
}

TEST(HopperClusters, AlongAllDimensions) {
  // Eight CTAs in two clusters of (1, 2, 2): each outputs all of its coordinates.
  const std::string text = pair_program(
      "mov.u32 %r1, %clusterid.x; mov.u32 %r2, %clusterid.y; mad.lo.u32 %r1, %r1, 10, %r2; mov.u32 %r2, %clusterid.z; mad.lo.u32 %r1, %r1, 10, %r2;\n"
      "mov.u32 %r2, %cluster_ctaid.x; mad.lo.u32 %r1, %r1, 10, %r2; mov.u32 %r2, %cluster_ctaid.y; mad.lo.u32 %r1, %r1, 10, %r2;\n"
      "mov.u32 %r2, %cluster_ctaid.z; mad.lo.u32 %r1, %r1, 10, %r2; mov.u32 %r2, %cluster_ctarank; mad.lo.u32 %r1, %r1, 10, %r2;\n"
      "mov.u32 %r2, %cluster_nctaid.x; mov.u32 %r3, %cluster_nctaid.y; mad.lo.u32 %r2, %r2, 10, %r3; mov.u32 %r3, %cluster_nctaid.z;\n"
      "mad.lo.u32 %r2, %r2, 10, %r3; mov.u32 %r3, %nclusterid.x; mad.lo.u32 %r2, %r2, 10, %r3; mov.u32 %r3, %nclusterid.y;\n"
      "mad.lo.u32 %r2, %r2, 10, %r3; mov.u32 %r3, %nclusterid.z; mad.lo.u32 %r2, %r2, 10, %r3;\n"
      "@%p0 st.shared.u32 [%smem], %r1;\n" +
          kMeet +
          // From CTA rank ^ 3, at the same place as in this one.
          "xor.b32 %r4, %rank, 3; mapa.shared::cluster.u32 %r5, %smem, %r4; ld.shared::cluster.u32 %r6, [%r5];\n"
          "mov.u32 %r7, %ctaid.z; mov.u32 %r8, %ctaid.y; mad.lo.u32 %r7, %r7, 2, %r8; mov.u32 %r8, %ctaid.x; mad.lo.u32 %r7, %r7, 2, %r8;\n"
          "ld.param.u64 %rd1, [output]; mad.wide.u32 %rd1, %r7, 8, %rd1; @%p0 st.global.v2.u32 [%rd1], {%r6, %r2};\n" +
          kMeet,
      "1, 2, 2");
  const RunResult result = run_test_kernel(text, 64, {}, 512, {}, {2, 2, 2}, tensor_map());
  EXPECT_EQ(result.report.findings_total, 0u) << all(result.report);
  for (std::uint64_t z = 0; z < 2; ++z)
    for (std::uint64_t y = 0; y < 2; ++y)
      for (std::uint64_t x = 0; x < 2; ++x) {
        const std::uint64_t other_y = 1 - y, other_z = 1 - z;
        const std::uint64_t named = x * 1000000 + other_y * 100 + other_z * 10 + other_y + 2 * other_z;
        EXPECT_EQ(result.output[(z * 2 + y) * 2 + x], named | std::uint64_t{122211} << 32) << x << y << z;
      }
  const Report refused = run_test_kernel(pair_program("", "1, 2, 1"), 64, {}, 8, {}, {2, 1, 1}, tensor_map()).report;
  EXPECT_EQ(refused.outcome, Outcome::refused);
  EXPECT_THAT(all(refused), testing::HasSubstr("(1, 2, 1)"));
}

// ---- st.async, red.async ----

// %rd1 = no data yet; %r3 = the other's mbarrier, which expects one arrival; all have passed the cluster barrier.
const std::string kInitPair =
    "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster;\n"
    "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned; add.u32 %r3, %there, 4000;\n";
const std::string kSend = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs], %t, [%r3];\n";
std::string promise(int bytes) {
  return fmt::format("@%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cta.b64 _, [smem+4000], {};\n", bytes);
}
const std::string kReceive =
    "ASK: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [smem+4000], 0; @!%p1 bra ASK;\n";
const std::string kShow = "ld.shared.u32 %r1, [%mine]; st.global.u32 [%out], %r1;\n";

TEST(HopperClusters, TheLastOneThatIsLeftIsStopped) {
  const std::string text = pair_program(
      "barrier.cluster.arrive;\nbarrier.cluster.wait;\nsetp.eq.u32 %p1, %rank, 1;\n@%p1 bra END;\n"
      "mov.u32 %r1, 1;\nLOOP:\nadd.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra LOOP;\nEND:\n");
  const Report report =
      run_test_kernel(text, 32, {}, 8, {.max_warp_instructions_per_cta = 10000, .print = {}}, {2, 1, 1}, tensor_map())
          .report;
  EXPECT_EQ(report.outcome, Outcome::stopped);
  ASSERT_EQ(report.findings.size(), 1u) << all(report);
  EXPECT_EQ(report.findings[0].kind, FindingKind::endless_loop);
  EXPECT_EQ(report.findings[0].cta, (Dim3{0, 0, 0}));
}

TEST(HopperAsyncStores, BytesArriveWithThePhase) {
  // Before the other CTA announces how many bytes it waits for, and after. There is no synchronisation at the end: a
  // CTA that has its bytes may end.
  for (const std::string& body :
       {kInitPair + kSend + promise(256) + kReceive + kShow, kInitPair + promise(256) + kSend + kReceive + kShow}) {
    expect_clean_pair(body);
    for (const bool early : {false, true}) {
      const RunResult result = run_test_kernel(pair_program(body), 64, {}, 128, {.early_async = early, .print = {}},
                                               {2, 1, 1}, tensor_map());
      for (std::size_t i = 0; i < 128; ++i) EXPECT_EQ(result.output[i], i % 64);
      EXPECT_EQ(result.report.totals.of(InstructionClass::shared_store), 4u);
      EXPECT_EQ(result.report.totals.shared_store.bytes, 512u);
    }
  }
  // Vectors, 64 bits, through generic addresses; half of them to the CTA itself.
  const std::string vectors =
      kInitPair + promise(64 * 16 + 64 * 8) +
      "shl.b32 %r4, %t, 4; add.u32 %r4, %r4, %there; cvt.rn.f32.u32 %f1, %t; mov.f32 %f2, 0f3f800000;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%r4], {%f1, %f2, %f2, %f1}, [%r3];\n"
      "mov.u64 %rd1, smem; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd1, %rd1, %rank; mul.wide.u32 %rd2, %t, 8; add.u64 %rd2, %rd2, %rd1;\n"
      "cvt.u64.u32 %rd3, %t; st.async.weak.mbarrier::complete_tx::bytes.u64 [%rd2+2048], %rd3, [%rd1+4000];\n" +
      kReceive +
      "shl.b32 %r4, %t, 4; add.u32 %r4, %r4, %smem; ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r4]; add.f32 %f1, %f1, %f4; cvt.rzi.u32.f32 %r5, %f1;\n"
      "shl.b32 %r4, %t, 3; add.u32 %r4, %r4, %smem; ld.shared.u64 %rd4, [%r4+2048]; cvt.u32.u64 %r6, %rd4; st.global.v2.u32 [%out], {%r5, %r6};\n";
  expect_clean_pair(vectors);
  EXPECT_EQ(run_test_kernel(pair_program(vectors), 64, {}, 128, {}, {2, 1, 1}, tensor_map()).output[70],
            12 + (std::uint64_t{6} << 32));
  // Their receiver knows what the sender read before, so the way back needs no further synchronisation.
  expect_clean_pair(
      kPut + "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster;\n" + kMeet +
      "add.u32 %r3, %there, 4000; setp.eq.u32 %p2, %rank, 0; @%p2 bra FIRST;\n" + promise(256) + kReceive +
      "ld.shared.u32 %r1, [%mine]; add.u32 %r1, %r1, 1;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs], %r1, [%r3];\nbra END;\n"
      "FIRST: ld.shared.u32 %r1, [%mine];\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs], %r1, [%r3];\n" +
      promise(256) +
      "ASK2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [smem+4000], 0; @!%p1 bra ASK2;\n" +
      "END:\n");
}

TEST(HopperAsyncStores, AddToWhatIsThere) {
  const std::string add =
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%there], %t, [%r3];\n";
  const auto body = [&](const std::string& first, const std::string& then) {
    return first + "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster;\n" +
           kMeet + "add.u32 %r3, %there, 4000;\n" + then;
  };
  const std::string start = "@%p0 st.shared.u32 [%smem], 100;\n",
                    show = "ld.shared.u32 %r1, [%smem]; st.global.u32 [%out], %r1;\n";
  const std::string right = body(start, promise(256) + add + kReceive + show);
  expect_clean_pair(right);
  for (const bool early : {false, true}) {
    const Options options{.early_async = early, .print = {}};
    EXPECT_EQ(run_test_kernel(pair_program(right), 64, {}, 128, options, {2, 1, 1}, tensor_map()).output[3],
              100u + 63 * 64 / 2);
  }
  const std::string least = body(
      "@%p0 st.shared.s32 [%smem], 5;\n",
      promise(256) +
          "sub.s32 %r4, %t, 40;\nred.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.s32 [%there], %r4, [%r3];\n" +
          kReceive + show);
  expect_clean_pair(least);
  EXPECT_EQ(run_test_kernel(pair_program(least), 64, {}, 128, {}, {2, 1, 1}, tensor_map()).output[3], 0xffffffd8u);
  expect_found_in_pair(body("", promise(256) + add + kReceive + show), FindingKind::uninitialised_read, 5,
                       "to which nothing has been written");
  expect_found_in_pair(body(start, promise(256) + add + show + kReceive), FindingKind::race, 7,
                       "red.async is in flight: it signals phase 0 ", 6);
  expect_found_in_pair(
      body(
          start,
          "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%smem], %t, [smem+4000];\n" +
              kMeet),
      FindingKind::invalid_operation, 5, "red.async to the CTA's own shared memory");
}

TEST(HopperAsyncStores, NobodyWaits) {
  expect_found_in_pair(kInitPair + promise(256) + kSend + kShow + kReceive, FindingKind::race, 5,
                       "a store by st.async is in flight", 4);
  // The wrong parity: that phase had ended before the barrier was initialised.
  expect_found_in_pair(kInitPair + promise(256) + kSend +
                           "ASK: mbarrier.try_wait.parity.shared::cta.b64 %p1, [smem+4000], 1; @!%p1 bra ASK;\n" +
                           kShow + kMeet,
                       FindingKind::race, 6, "a store by st.async is in flight", 4);
  expect_found_in_pair(kInitPair + kSend + kMeet, FindingKind::in_flight, 3, "ends while st.async still writes");
  // The previous data are still being read, or written.
  const std::string put =
      kPut + "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster;\n" + kMeet +
      "add.u32 %r3, %there, 4000;\n" + promise(256);
  expect_found_in_pair(put + "ld.shared.u32 %r2, [%mine];\n" + kSend + kReceive + kShow, FindingKind::race, 7,
                       "a write to byte 0 of the shared memory of CTA", 6);
  expect_clean_pair(put + "ld.shared.u32 %r2, [%mine];\n" + kMeet + kSend + kReceive + kShow);
  expect_found_in_pair(put + kSend + "st.shared.u32 [%mine], 5;\n" + kReceive, FindingKind::race, 7,
                       "a store by st.async is in flight", 6);
  // Two lanes write to one place; if all write the same value, that is not a race.
  const auto all_to_one = [&](const std::string& value) {
    return kInitPair + promise(256) + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%there], " +
           value + ", [%r3];\n" + kReceive;
  };
  expect_found_in_pair(all_to_one("%t"), FindingKind::race, 4, "two lanes write different values", 4);
}

TEST(HopperAsyncStores, BytesAreNotThosePromised) {
  expect_found_in_pair(kInitPair + promise(128) + kSend + kReceive + kShow, FindingKind::transaction_count, 4,
                       "st.async brings 256 bytes", 3);
  expect_found_in_pair(kInitPair + promise(512) + kSend + kReceive + kShow, FindingKind::deadlock, 5,
                       "and 512 bytes, of which st.async brings 256");
  expect_found_in_pair(kInitPair + kSend + kMeet + "@%p0 mbarrier.arrive.shared.b64 %rd1, [smem+4000];\n" + kReceive,
                       FindingKind::transaction_count, 3, "this st.async of 128 bytes");
}

TEST(HopperAsyncStores, WhereTheyCannotGo) {
  expect_found_in_pair(kInitPair + promise(256) +
                           "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs], %r9, [%r3];\n" +
                           kReceive,
                       FindingKind::uninitialised_read, 4, "and it is stored");
  // A CTA that has ended, or that is not guaranteed to have begun.
  expect_found_in_pair(kInitPair + "setp.eq.u32 %p2, %rank, 1; @%p2 bra END;\n" + kSend + "END:\n",
                       FindingKind::in_flight, 4, "of the cluster, which has ended");
  expect_found_in_pair(
      "add.u32 %r3, %there, 4000; @%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; bar.sync 0;\n" + kSend + kMeet,
      FindingKind::race, 2, "nothing guarantees that it has begun");
  expect_found_in_pair("add.u32 %r3, %there, 4000;\n" + kMeet + kSend + kMeet, FindingKind::invalid_operation, 3,
                       "of the cluster holds no mbarrier");
  // Initialised after the others have passed the cluster barrier.
  expect_found_in_pair(
      kMeet + "add.u32 %r3, %there, 4000; @%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; bar.sync 0;\n" +
          promise(256) + kSend + kReceive,
      FindingKind::race, 4, kAnyWords, 2);
  expect_found_in_pair(
      kInitPair + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs], %t, [smem+4000];\n" +
          kMeet,
      FindingKind::invalid_operation, 3, "both must belong to the same CTA");
  expect_found_in_pair(
      kInitPair + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%theirs+4096], %t, [%r3];\n" + kMeet,
      FindingKind::out_of_bounds, 3, "an access of 4 bytes at byte 4");
  expect_found_in_pair(kInitPair + "st.async.weak.mbarrier::complete_tx::bytes.u32 [%out], %t, [%out];\n" + kMeet,
                       FindingKind::invalid_operation, 3, "not in shared memory");
  expect_found(
      "mapa.shared::cluster.u32 %r1, %smem, 0;\nst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %t, [%r1];\n",
      FindingKind::invalid_operation, 2, "in a cluster of one CTA");
}

// ---- cp.async.bulk from shared memory to that of another CTA ----

TEST(HopperClusters, ABulkCopyToAnotherCta) {
  const std::string
      init =
          "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 1; @%p0 fence.mbarrier_init.release.cluster; add.u32 %r3, %there, 4000;\n",
      fill = "mad.lo.u32 %r2, %rank, 1000, %t; st.shared.u32 [%mine], %r2; fence.proxy.async;\n",
      copy =
          "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%there+1024], [%smem], 256, [%r3];\n",
      show = "ld.shared.u32 %r1, [%mine+1024]; st.global.u32 [%out], %r1;\n";
  const std::string right = init + fill + kMeet + promise(256) + copy + kReceive + show + kMeet;
  expect_clean_pair(right);
  for (const bool early : {false, true}) {
    const Options options{.early_async = early, .print = {}};
    EXPECT_EQ(run_test_kernel(pair_program(right), 64, {}, 128, options, {2, 1, 1}, tensor_map()).output[5], 1005u);
  }
  expect_found_in_pair(init + fill + kMeet + promise(256) + copy + show + kReceive + kMeet, FindingKind::race, 6,
                       "a load by TMA is in flight", 5);
  expect_found_in_pair(init + fill + kMeet + promise(128) + copy + kReceive + show + kMeet,
                       FindingKind::transaction_count, 5, "TMA brings 256 bytes", 4);
  // The source: not made visible to the asynchronous proxy; written while it is read; written again after the other CTA
  // has received it and signalled that.
  expect_found_in_pair(init + kPut + kMeet + promise(256) + copy + kReceive + show + kMeet, FindingKind::missing_fence,
                       5, "no fence.proxy.async", 2);
  const std::string again = "st.shared.u32 [%mine], 5;\n";
  expect_found_in_pair(init + fill + kMeet + promise(256) + copy + again + kReceive + show + kMeet, FindingKind::race,
                       5, "was written while this copy by TMA", 6);
  expect_clean_pair(init + fill + kMeet + promise(256) + copy + kReceive + kMeet + again);
  expect_found_in_pair(init + fill + kMeet + promise(256) + copy + kReceive + again + kMeet, FindingKind::race, 7,
                       kAnyWords, 5);
  // The sender ends before the receiver has waited.
  expect_found_in_pair(init + fill + kMeet + "setp.eq.u32 %p3, %rank, 0; @%p3 bra SEND;\n" + promise(256) + kReceive +
                           "bra END;\nSEND: " + copy + "END:\n",
                       FindingKind::in_flight, 8, "TMA still copies 256 bytes");
  expect_found_in_pair(
      init + fill + kMeet +
          "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%there], [%smem], 250, [%r3];\n" +
          kMeet,
      FindingKind::misaligned, 4, "250 bytes");
}

// ---- global memory ----

TEST(HopperClusters, GlobalMemoryBetweenThem) {
  // Each CTA writes its own memory, and reads the other's.
  const std::string put = "st.global.u32 [%out], %t;\n",
                    get =
                        "ld.param.u64 %rd1, [output]; mad.lo.u32 %r1, %peer, 64, %t; mad.wide.u32 %rd1, %r1, 8, %rd1;\n"
                        "ld.global.u32 %r2, [%rd1]; st.global.u32 [%out+4], %r2;\n";
  expect_clean_pair(put + kMeet + get);
  EXPECT_EQ(run_test_kernel(pair_program(put + kMeet + get), 64, {}, 128, {}, {2, 1, 1}, tensor_map()).output[69],
            5 + (std::uint64_t{5} << 32));
  expect_found_in_pair(kMeet + put + get, FindingKind::race, 4, "after the write of another block", 2);
  const std::string relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\n";
  expect_found_in_pair(put + relaxed + get, FindingKind::race, 4, kAnyWords, 1);
  expect_clean_pair(put + "fence.acq_rel.cluster; " + relaxed + get);
  // Read while it is overwritten; the second synchronisation fixes it.
  expect_found_in_pair(put + kMeet + get + "st.global.u32 [%out], 7;\n", FindingKind::race, 5,
                       "after a read of another block", 4);
  expect_clean_pair(put + kMeet + get + kMeet + "st.global.u32 [%out], 7;\n");
  // Both write one word: if the value is the same, that is not a race.
  const auto both = [&](const std::string& value) {
    return "ld.param.u64 %rd1, [output];\n@%p0 st.global.u32 [%rd1], " + value + ";\n";
  };
  expect_found_in_pair(both("%rank"), FindingKind::race, 2, "after the write before it, of another block", 2);
  expect_clean_pair(both("9"));
  // Through an mbarrier of the other CTA.
  const std::string
      init = "@%p0 mbarrier.init.shared::cta.b64 [smem+4000], 64; @%p0 fence.mbarrier_init.release.cluster;\n" +
             relaxed + "add.u32 %r3, %there, 4000;\n",
      arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];\n",
      wait = "ASK: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [smem+4000], 0; @!%p2 bra ASK;\n";
  expect_clean_pair(init + put + arrive + wait + get);
  expect_found_in_pair(init + arrive + put + wait + get, FindingKind::race, 8, kAnyWords, 5);
}

// Kernels whose CTAs can communicate through global memory run in order, and are checked in a different way.
TEST(HopperClusters, GlobalMemoryBetweenThemAndOthers) {
  const auto clean = [](const std::string& body, Dim3 grid) {
    expect_clean(
        [&](const std::string& text, const Options& options) {
          return run_test_kernel(pair_program(text), 64, {}, 512, options, grid, tensor_map()).report;
        },
        body);
  };
  const std::string
      flag = "ld.param.u64 %rd5, [output]; add.u64 %rd5, %rd5, 4000;\n",
      put = "st.global.u32 [%out], %t;\n",
      get =
          "ld.param.u64 %rd1, [output]; mad.lo.u32 %r1, %peer, 64, %t; mad.wide.u32 %rd1, %r1, 8, %rd1;\n"
          "ld.global.u32 %r2, [%rd1]; st.global.u32 [%out+4], %r2;\n",
      count = "bar.sync 0; @%p0 red.release.gpu.global.add.u32 [%rd5], 1;\n",
      wait =
          "setp.ne.u32 %p3, %t, 0; @%p3 bra MEET;\nASK: ld.acquire.gpu.global.u32 %r4, [%rd5]; setp.lt.u32 %p4, %r4, 2; @%p4 bra ASK;\n"
          "MEET: bar.sync 0;\n";
  clean(flag + put + kMeet + get + count, {2, 1, 1});
  expect_found_in_pair(flag + kMeet + put + get + count, FindingKind::race, 5, kAnyWords, 3);
  // Through a flag in global memory, which also releases accesses to shared memory.
  clean(flag + put + count + wait + get, {2, 1, 1});
  clean(flag + kMeet + "st.shared::cluster.u32 [%theirs], %t;\n" + count + wait + kShow, {2, 1, 1});
  // A CTA of another cluster acquires what one CTA has done, if that CTA had synchronised with the one that releases.
  const std::string other =
      "mov.u32 %r5, %clusterid.x; setp.eq.u32 %p5, %r5, 1; @%p5 bra SECOND;\n" + put + kMeet +
      "setp.eq.u32 %p6, %rank, 1; and.pred %p6, %p6, %p0; @%p6 red.release.gpu.global.add.u32 [%rd5], 2;\nbra END;\n"
      "SECOND: setp.eq.u32 %p6, %rank, 0; and.pred %p6, %p6, %p0; @!%p6 bra MEET;\n"
      "ASK: ld.acquire.gpu.global.u32 %r4, [%rd5]; setp.lt.u32 %p4, %r4, 2; @%p4 bra ASK;\n"
      "MEET: " +
      kMeet +
      "ld.param.u64 %rd1, [output]; mul.wide.u32 %rd2, %t, 8; add.u64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1]; st.global.u32 [%out+4], %r2;\nEND:\n";
  clean(flag + other, {4, 1, 1});
}

TEST(HopperRoles, WhoDoesWhatWithHowManyRegisters) {
  const auto roles = [](const std::string& body, unsigned threads) {
    return report_of(body, threads, {.registers_per_thread = 104, .print = {}}).roles;
  };
  const std::vector<Role> two = roles(
      "setp.lt.u32 %p2, %t, 128; @%p2 bra LOAD;\nsetmaxnreg.inc.sync.aligned.u32 160;\nbra END;\nLOAD: setmaxnreg.dec.sync.aligned.u32 32;\n"
      "setp.eq.u32 %p0, %t, 32;\n@!%p0 bra END;\nmbarrier.init.shared.b64 [smem+40000], 1; fence.mbarrier_init.release.cluster;\n" +
          kExpect + kLoad + kAsk + "END:\n",
      256);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0], (Role{.warps = {0, 1, 2, 3}, .loads = true, .registers_at_launch = 104, .registers = 32}));
  EXPECT_EQ(two[1], (Role{.warps = {4, 5, 6, 7}, .registers_at_launch = 104, .registers = 160}));
  EXPECT_EQ(
      describe(two),
      "warps 0–3: TMA loads, 32 registers a thread; warps 4–7: neither wgmma nor TMA, 160 registers a thread (104 at "
      "the launch)");
  const std::vector<Role> one = roles(kVisible + kFence + kMma + kCommit + kWait + kUse, 128);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_TRUE(one[0].multiplies && !one[0].loads && !one[0].stores);
  EXPECT_EQ(describe(one), "");
}

// The counts that the lessons discuss.
TEST(HopperCounters, OperandsByTheirSwizzle) {
  const auto operands = [](const std::string& change) {
    return report_of(kVisible + kFence + change + kMma + kCommit + kWait + kUse).totals;
  };
  const Counters swizzled = operands("");
  EXPECT_EQ(swizzled.of(InstructionClass::wgmma), 4u);
  EXPECT_EQ(swizzled.wgmma_operands.requests, 5u) << "of A and B, once for the warpgroup, 512 bytes at a time";
  EXPECT_EQ(swizzled.wgmma_operands.bytes, 64u * 32 + 8 * 32);
  EXPECT_EQ(swizzled.wgmma_operands.transactions, 2u * 8 + 2);
  EXPECT_EQ(swizzled.wgmma_operands.ideal, 2u * 8 + 2);
  // Rows of 128 bytes without a swizzle: eight of them start in the same bank. (A stride of 128 bytes is a leading offset here.)
  const Counters plain = operands(
      "and.b64 %a, %a, 0x3fff; or.b64 %a, %a, 0x0000001000080000;\nand.b64 %b, %b, 0x3fff; or.b64 %b, %b, 0x0000001000080000;\n");
  EXPECT_EQ(plain.wgmma_operands.transactions, plain.wgmma_operands.ideal) << "eight rows of 16 bytes lie side by side";
}

TEST(HopperCounters, BytesOfTma) {
  const Counters counters = report_of(kBarrier + kExpect + kLoad + kAsk + kRead).totals;
  EXPECT_EQ(counters.of(InstructionClass::tma), 4u) << "one of each warp, though a single lane asks";
  EXPECT_EQ(counters.tma_load.bytes, 1024u);
  EXPECT_EQ(counters.tma_load.requests, 1u);
  EXPECT_EQ(counters.tma_load.transactions, 32u);
  EXPECT_EQ(counters.global_load.bytes, 0u);
}

}  // namespace
}  // namespace flash_ladder::emulator
