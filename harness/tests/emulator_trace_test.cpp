// Traces of small kernels: which warp's clock waits for which.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kThreads = 64;  // two warps

Options tracing(Dim3 cta) {
  Options options;
  options.trace_cta = cta;
  return options;
}

RunResult run(const std::string& body, const Options& options = tracing({0, 0, 0}), Dim3 grid = {}) {
  return run_test_kernel(program(body), kThreads, std::vector<std::uint64_t>(256), 256, options, grid);
}

CtaTrace trace_of(const std::string& body) {
  const Report report = run(body).report;
  EXPECT_EQ(report.outcome, Outcome::completed);
  EXPECT_NE(report.trace, nullptr);
  return report.trace != nullptr ? *report.trace : CtaTrace{};
}

// The intervals of a warp with this phase.
std::vector<TraceInterval> of(const CtaTrace& trace, int warp, Phase phase) {
  std::vector<TraceInterval> found;
  for (const TraceInterval& interval : trace.intervals)
    if (interval.warp == warp && interval.phase == phase) found.push_back(interval);
  return found;
}

std::uint64_t end_of(const CtaTrace& trace, int warp) {
  std::uint64_t end = 0;
  for (const TraceInterval& interval : trace.intervals)
    if (interval.warp == warp) end = std::max(end, interval.end);
  return end;
}

std::string times(int count, const std::string& line) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line + " ";
  return text;
}

// Only warp 0 performs the work on this line.
std::string warp_0_alone(const std::string& work) {
  return "setp.ne.u32 %p1, %r92, 0;\n@%p1 bra PAST;\n" + work + "\nPAST:\n";
}

TEST(Trace, IsThereOnlyWhereItIsAskedFor) {
  EXPECT_EQ(run("bar.sync 0;", {}).report.trace, nullptr);
  EXPECT_EQ(run("bar.sync 0;", tracing({3, 0, 0})).report.trace, nullptr) << "no such CTA";
  const Report report = run("bar.sync 0;", tracing({2, 0, 0}), {4, 1, 1}).report;
  ASSERT_NE(report.trace, nullptr);
  EXPECT_EQ(report.trace->cta, (Dim3{2, 0, 0}));
  EXPECT_EQ(report.trace->num_warps, 2);
}

TEST(Trace, ChangesNothingElse) {
  const std::string body =
      warp_0_alone(times(20, "fma.rn.f32 %f1, %f1, %f1, %f1;")) + "bar.sync 0;\nst.shared.u32 [%r94], %r90;";
  const Report traced = run(body).report, plain = run(body, {}).report;
  EXPECT_EQ(traced.totals, plain.totals);
  EXPECT_EQ(traced.findings_total, plain.findings_total);
}

TEST(Trace, HasEveryInstructionOnceAndWithoutGaps) {
  const Report report =
      run(warp_0_alone(times(30, "mul.f32 %f1, %f1, %f1;")) + "bar.sync 0;\nst.shared.u32 [%r94], %r90;").report;
  ASSERT_NE(report.trace, nullptr);
  std::uint64_t instructions = 0;
  std::map<int, std::uint64_t> clock;
  for (const TraceInterval& interval : report.trace->intervals) {
    EXPECT_EQ(interval.begin, clock[interval.warp]);
    EXPECT_GT(interval.end, interval.begin);
    clock[interval.warp] = interval.end;
    instructions += interval.instructions;
  }
  EXPECT_EQ(instructions, report.totals.warp_instructions);
}

TEST(Trace, NamesPhasesAndLines) {
  const CtaTrace trace = trace_of(
      "st.shared.u32 [%r94], %r90;\n"
      "bar.sync 0;\n"
      "ld.shared.u32 %r1, [%r94];\n"
      "add.u32 %r1, %r1, 1; cvt.rn.f32.u32 %f1, %r1; ex2.approx.f32 %f1, %f1;\n"
      "ld.global.u32 %r2, [%rd90];\n"
      "st.global.u32 [%rd91], %r2;\n");
  std::vector<std::pair<Phase, int>> found;
  for (const TraceInterval& interval : trace.intervals)
    if (interval.warp == 1 && interval.phase != Phase::other)
      found.emplace_back(interval.phase, trace.positions[static_cast<std::size_t>(interval.position)][0].line);
  using enum Phase;
  EXPECT_THAT(found, testing::ElementsAre(std::pair(store, 1), std::pair(wait_barrier, 2), std::pair(load, 3),
                                          std::pair(arithmetic, 4), std::pair(copy, 5), std::pair(store, 6)));
  EXPECT_EQ(of(trace, 1, load)[0].instructions, 2u) << "the addition has no phase of its own, and goes with the load";
  EXPECT_EQ(of(trace, 1, arithmetic)[0].instructions, 2u);
}

TEST(Trace, ABarrierLetsGoWhenTheLastWarpHasCome) {
  const CtaTrace trace =
      trace_of(warp_0_alone(times(100, "mul.f32 %f1, %f1, %f1;")) + "bar.sync 0;\nmul.f32 %f1, %f1, %f1;");
  const auto slow = of(trace, 0, Phase::wait_barrier), fast = of(trace, 1, Phase::wait_barrier);
  ASSERT_EQ(slow.size(), 1u);
  ASSERT_EQ(fast.size(), 1u);
  EXPECT_EQ(slow[0].end - slow[0].begin, 1u) << "the last one waits for nobody";
  EXPECT_EQ(fast[0].end - fast[0].begin, 101u) << "100 instructions, which it did not have, and its own";
  EXPECT_EQ(slow[0].end, fast[0].end);
  EXPECT_EQ(fast[0].barrier, (TraceBarrier{false, 0, 0}));
  EXPECT_EQ(fast[0].ended_by, 0);
  EXPECT_EQ(slow[0].barrier, (TraceBarrier{false, 0, 0}));
  EXPECT_EQ(slow[0].ended_by, -1) << "it waited for nobody";
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].kind, TraceEvent::Kind::arrive);
  EXPECT_EQ(trace.events[0].barrier, (TraceBarrier{false, 0, 0}));
}

TEST(Trace, PhasesOfABarrierAreCounted) {
  const CtaTrace trace = trace_of("bar.sync 3, 64;\nbar.sync 3, 64;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n");
  const auto waits = of(trace, 1, Phase::wait_barrier);
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_EQ(waits[0].barrier, (TraceBarrier{false, 3, 0}));
  EXPECT_EQ(waits[1].barrier, (TraceBarrier{false, 3, 1}));
  EXPECT_EQ(waits[2].barrier, (TraceBarrier{false, 16, 0})) << "that of the cluster";
}

TEST(Trace, AnMbarrierLetsGoWhenTheLastArrivalHasCome) {
  // Warp 0 works and arrives; warp 1 tests immediately, and then repeatedly.
  const std::string body =
      "setp.ne.u32 %p1, %r90, 0;\n@!%p1 mbarrier.init.shared.b64 [smem+2048], 32;\nbar.sync 0;\n"
      "setp.ne.u32 %p2, %r92, 0;\n@%p2 bra WAIT;\n" +
      times(50, "mul.f32 %f1, %f1, %f1;") +
      "\nmbarrier.arrive.shared.b64 %rd1, [smem+2048];\nbra DONE;\n"
      "WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 0; @!%p3 bra WAIT;\nmul.f32 %f1, %f1, %f1;\nDONE:\n";
  const CtaTrace trace = trace_of(body);
  const auto worked = of(trace, 0, Phase::arithmetic), waited = of(trace, 1, Phase::wait_mbarrier);
  ASSERT_EQ(worked.size(), 1u);
  ASSERT_EQ(waited.size(), 1u) << "however often it asked";
  EXPECT_EQ(waited[0].instructions, 1u);
  EXPECT_EQ(waited[0].end, worked[0].begin + 51) << "the arrival is the 51st instruction from there on";
  EXPECT_EQ(of(trace, 1, Phase::arithmetic)[0].begin, waited[0].end + 1) << "after the branch";
  EXPECT_GT(end_of(trace, 1), end_of(trace, 0) - 3);
  ASSERT_EQ(trace.mbarriers.size(), 1u);
  EXPECT_EQ(trace.mbarriers[0].arrivals, 32u);
  EXPECT_EQ(waited[0].barrier, (TraceBarrier{true, trace.mbarriers[0].address, 0}));
  EXPECT_EQ(waited[0].ended_by, 0);
}

TEST(Trace, APhaseThatHasEndedIsNotWaitedFor) {
  const std::string body =
      "setp.ne.u32 %p1, %r90, 0;\n@!%p1 mbarrier.init.shared.b64 [smem+2048], 64;\nbar.sync 0;\n"
      "WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 1; @!%p3 bra WAIT;\n";
  for (const int warp : {0, 1}) {
    const auto waited = of(trace_of(body), warp, Phase::wait_mbarrier);
    ASSERT_EQ(waited.size(), 1u);
    EXPECT_EQ(waited[0].end - waited[0].begin, 1u);
    ASSERT_TRUE(waited[0].barrier);
    EXPECT_EQ(waited[0].barrier->phase, -1) << "that before the first";
    EXPECT_EQ(waited[0].ended_by, -1);
  }
}

TEST(Trace, CopiesTakeNoTimeButTheirArrivalIsTheCopyingWarps) {
  const std::string body =
      "setp.ne.u32 %p1, %r90, 0;\n@!%p1 mbarrier.init.shared.b64 [smem+2048], 32;\nbar.sync 0;\n"
      "setp.ne.u32 %p2, %r92, 0;\n@%p2 bra WAIT;\n" +
      times(40, "mul.f32 %f1, %f1, %f1;") +
      "\nmad.lo.u32 %r5, %r91, 16, %r93; mad.wide.u32 %rd1, %r91, 16, %rd90; cp.async.cg.shared.global [%r5], [%rd1], 16;\n"
      "cp.async.mbarrier.arrive.noinc.shared.b64 [smem+2048];\ncp.async.wait_all;\nbra DONE;\n"
      "WAIT: mbarrier.test_wait.parity.shared.b64 %p3, [smem+2048], 0; @!%p3 bra WAIT;\nDONE:\n";
  const CtaTrace trace = trace_of(body);
  const auto copied = of(trace, 0, Phase::copy), waited = of(trace, 1, Phase::wait_mbarrier);
  ASSERT_EQ(copied.size(), 2u);  // one line each
  ASSERT_EQ(waited.size(), 1u);
  EXPECT_EQ(waited[0].end, copied[1].end);
  ASSERT_EQ(of(trace, 0, Phase::wait_copies).size(), 1u);
  EXPECT_EQ(of(trace, 0, Phase::wait_copies)[0].end - of(trace, 0, Phase::wait_copies)[0].begin, 1u);
}

}  // namespace
}  // namespace flash_ladder::emulator
