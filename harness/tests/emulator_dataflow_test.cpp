// Which of a launch's work counts as work towards its output.

#include <gtest/gtest.h>

#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

constexpr unsigned kThreads = 32;

// Runs a body on one warp; its output is 256 words of 32 bits.
UsefulWork useful(const std::string& body, unsigned threads = kThreads) {
  Memory memory;
  const Module module(program(body), memory);
  const Kernel& kernel = module.kernel("test");
  constexpr std::size_t kInputBytes = 4096, kOutputBytes = 1024;
  const Address input = memory.allocate(kInputBytes), output = memory.allocate(kOutputBytes);
  memory.fill(input, 0, kInputBytes);
  memory.fill(output, 0, kOutputBytes);
  const void* arguments[] = {&input, &output};
  const std::vector<std::byte> parameters = pack_parameters(kernel, arguments);
  Options options;
  options.outputs = {{output, kOutputBytes}};
  const Report report =
      launch(kernel, {.grid = {}, .block = {threads, 1, 1}, .parameters = parameters}, memory, options);
  EXPECT_EQ(report.outcome, Outcome::completed);
  for (const Finding& finding : report.findings) ADD_FAILURE() << format(finding);
  EXPECT_TRUE(report.useful.has_value());
  return report.useful.value_or(UsefulWork{});
}

// %rd1 = the thread's word of the input, %rd2 = of the output.
const std::string kAddresses = "mul.wide.u32 %rd3, %r90, 4;\nadd.u64 %rd1, %rd90, %rd3;\nadd.u64 %rd2, %rd91, %rd3;\n";
const std::string kLoad = kAddresses + "ld.global.f32 %f1, [%rd1];\n";

TEST(Dataflow, IsFollowedOnlyWhereThereAreOutputs) {
  EXPECT_FALSE(run_test_kernel(program("bar.sync 0;"), kThreads, {}, 1).report.useful.has_value());
}

TEST(Dataflow, CountsWhatReachesTheOutput) {
  const UsefulWork used = useful(kLoad + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(used.global_load_bytes, 128u);
  EXPECT_EQ(used.exponentials, 32u);

  const UsefulWork unused = useful(kLoad + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%rd2], %f1;\n");
  EXPECT_EQ(unused.global_load_bytes, 128u);
  EXPECT_EQ(unused.exponentials, 0u) << "its result is not stored";

  const UsefulWork overwritten =
      useful(kLoad + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%rd2], %f2;\nst.global.f32 [%rd2], %f1;\n");
  EXPECT_EQ(overwritten.exponentials, 0u) << "the output holds another value in the end";

  const UsefulWork elsewhere = useful(kLoad + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%rd1], %f2;\n");
  EXPECT_EQ(elsewhere, UsefulWork{}) << "what is stored there is not the output";
}

TEST(Dataflow, PlacesExponentialsAmongTheLoads) {
  const std::string another = "ld.global.f32 %f3, [%rd1+128];\n";
  const std::string sum = "add.f32 %f2, %f2, %f3;\nst.global.f32 [%rd2], %f2;\n";
  const UsefulWork early = useful(kLoad + "ex2.approx.f32 %f2, %f1;\n" + another + sum);
  EXPECT_EQ(early.bytes_before_exponentials, 128u);
  EXPECT_EQ(early.bytes_around_exponentials, 256u);
  const UsefulWork late = useful(kLoad + another + "ex2.approx.f32 %f2, %f1;\n" + sum);
  EXPECT_EQ(late.bytes_before_exponentials, 256u);
  EXPECT_EQ(late.bytes_around_exponentials, 256u);
  const UsefulWork unused = useful(kLoad + another + "ex2.approx.f32 %f2, %f1;\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(unused.bytes_before_exponentials, 128u) << "the second load does not count";
}

TEST(Dataflow, AddressesAndGuardsAreNoValues) {
  EXPECT_EQ(useful(kLoad + "cvt.rzi.u32.f32 %r1, %f1;\nmul.wide.u32 %rd4, %r1, 4;\nadd.u64 %rd2, %rd2, %rd4;\n"
                           "mov.f32 %f2, 0f3f800000;\nst.global.f32 [%rd2], %f2;\n")
                .global_load_bytes,
            0u);
  EXPECT_EQ(
      useful(kLoad + "setp.eq.f32 %p1, %f1, 0f00000000;\nmov.f32 %f2, 0f3f800000;\n@%p1 st.global.f32 [%rd2], %f2;\n")
          .global_load_bytes,
      0u);
}

TEST(Dataflow, LanesThatDoNotTakePartKeepTheirValue) {
  const UsefulWork work = useful(kLoad +
                                 "ex2.approx.f32 %f2, %f1;\nsetp.lt.u32 %p1, %r91, 4;\n@%p1 mov.f32 %f2, 0f3f800000;\n"
                                 "st.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(work.exponentials, 32u);
}

TEST(Dataflow, IsFollowedThroughMemoryAndShuffles) {
  const UsefulWork shared = useful(kLoad +
                                   "st.shared.f32 [%r94], %f1;\nbar.warp.sync -1;\nxor.b32 %r1, %r94, 4;\n"
                                   "ld.shared.f32 %f2, [%r1];\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(shared.global_load_bytes, 128u);
  EXPECT_EQ(shared.shared_store_bytes, 128u);
  EXPECT_EQ(shared.shared_load_bytes, 128u);
  EXPECT_EQ(shared.shared_load_instructions, 1u);

  const UsefulWork overwritten =
      useful(kLoad +
             "st.shared.f32 [%r94], %f1;\nmov.f32 %f3, 0f3f800000;\nst.shared.f32 [%r94], %f3;\n"
             "ld.shared.f32 %f2, [%r94];\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(overwritten.global_load_bytes, 0u);
  EXPECT_EQ(overwritten.shared_store_bytes, 128u) << "only the second store";

  const UsefulWork local = useful(kLoad +
                                  "mov.u64 %rd5, local;\nst.local.f32 [%rd5], %f1;\nld.local.f32 %f2, [%rd5];\n"
                                  "st.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(local.global_load_bytes, 128u);

  const UsefulWork global =
      useful(kLoad + "st.global.f32 [%rd1], %f1;\nld.global.f32 %f2, [%rd1];\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(global.global_load_bytes, 256u);

  const UsefulWork shuffled = useful(kLoad + "shfl.sync.bfly.b32 %f2, %f1, 1, 31, -1;\nst.global.f32 [%rd2], %f2;\n");
  EXPECT_EQ(shuffled.shuffle_instructions, 1u);
  EXPECT_EQ(shuffled.global_load_bytes, 128u);
}

// Two copies of 512 bytes, in a group each; the first is used after a wait that leaves `pending` groups.
std::string two_copies(int pending, const std::string& read) {
  return kAddresses +
         "mul.wide.u32 %rd4, %r90, 16;\nadd.u64 %rd4, %rd90, %rd4;\nmad.lo.u32 %r1, %r90, 16, %r93;\n"
         "cp.async.cg.shared.global [%r1], [%rd4], 16;\ncp.async.commit_group;\n"
         "cp.async.cg.shared.global [%r1+512], [%rd4+512], 16;\ncp.async.commit_group;\n"
         "cp.async.wait_group " +
         std::to_string(pending) +
         ";\nld.shared.f32 %f1, [%r1];\n"
         "cp.async.wait_group 0;\n" +
         read + "st.global.f32 [%rd2], %f1;\n";
}

TEST(Dataflow, CountsTheCopiesInFlightWhenAnEarlierOneIsUsed) {
  const std::string second = "ld.shared.f32 %f2, [%r1+512];\nadd.f32 %f1, %f1, %f2;\n";
  const UsefulWork early = useful(two_copies(1, second));
  EXPECT_EQ(early.copy_bytes, 1024u);
  EXPECT_EQ(early.loads_of_copies, 2u);
  EXPECT_EQ(early.bytes_in_flight, 512u) << "the second copy, while the first is read";

  EXPECT_EQ(useful(two_copies(0, second)).bytes_in_flight, 0u) << "after a wait for everything";

  const UsefulWork unused = useful(two_copies(1, ""));
  EXPECT_EQ(unused.copy_bytes, 512u);
  EXPECT_EQ(unused.bytes_in_flight, 0u) << "a copy that nothing uses does not count";
}

TEST(Dataflow, ACopyIsInFlightUntilItsOwnWarpHasWaited) {
  // Both warps arrive; warp 0 waits at the mbarrier first, which completes the copies of both. Warp 1 reads another
  // location, without having waited for its copy, which it reads last.
  const UsefulWork work =
      useful(kAddresses +
                 "mul.wide.u32 %rd4, %r90, 16;\nadd.u64 %rd4, %rd90, %rd4;\nmad.lo.u32 %r1, %r90, 16, %r93;\n"
                 "add.u32 %r2, %r93, 4088;\nsetp.ne.u32 %p1, %r90, 0;\n@%p1 bra READY;\n"
                 "mbarrier.init.shared.b64 [%r2], 64;\nREADY:\nbar.sync 0;\n"
                 "cp.async.cg.shared.global [%r1], [%rd4], 16;\ncp.async.commit_group;\n"
                 "cp.async.cg.shared.global [%r1+1024], [%rd4+1024], 16;\n"
                 "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];\n"
                 "cp.async.wait_group 0;\nld.shared.f32 %f1, [%r1];\n"
                 "AGAIN:\nmbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0;\n@!%p2 bra AGAIN;\n"
                 "ld.shared.f32 %f2, [%r1+1024];\nadd.f32 %f1, %f1, %f2;\nst.global.f32 [%rd2], %f1;\n",
             64);
  EXPECT_EQ(work.copy_bytes, 2048u);
  EXPECT_EQ(work.copy_bytes_of_one_warp, 1024u);
  EXPECT_EQ(work.loads_of_copies, 4u);
  EXPECT_EQ(work.bytes_in_flight, 2 * 1024u) << "at the first load of each warp: its second copy, for two warps";
}

TEST(Dataflow, ACopyOfAnotherWarpDoesNotCountBesideThoseOfWarpsThatCopyAndRead) {
  // Warp 0 copies 512 bytes twice and reads the first after a wait that leaves the second pending; warp 1 reads the
  // first after the barrier, when the second may or may not have arrived.
  const UsefulWork work =
      useful(kAddresses +
                 "mul.wide.u32 %rd4, %r90, 16;\nadd.u64 %rd4, %rd90, %rd4;\nand.b32 %r1, %r90, 31;\n"
                 "mad.lo.u32 %r1, %r1, 16, %r93;\nsetp.ge.u32 %p1, %r90, 32;\n@%p1 bra READ;\n"
                 "cp.async.cg.shared.global [%r1], [%rd4], 16;\ncp.async.commit_group;\n"
                 "cp.async.cg.shared.global [%r1+512], [%rd4+512], 16;\ncp.async.commit_group;\n"
                 "cp.async.wait_group 1;\n"
                 "READ:\nbar.sync 0;\nld.shared.f32 %f1, [%r1];\n"
                 "cp.async.wait_group 0;\nbar.sync 0;\nld.shared.f32 %f2, [%r1+512];\nadd.f32 %f1, %f1, %f2;\n"
                 "st.global.f32 [%rd2], %f1;\n",
             64);
  EXPECT_EQ(work.copy_bytes, 1024u);
  EXPECT_EQ(work.copy_bytes_of_one_warp, 1024u) << "warp 1 copies nothing";
  EXPECT_EQ(work.most_bytes_of_a_warp, 1024u);
  EXPECT_EQ(work.loads_of_copies, 2u) << "those of warp 0";
  EXPECT_EQ(work.bytes_in_flight, 512u) << "the second copy, at the first load";
}

TEST(Dataflow, CountsTheMmasBetweenALoadAndItsUse) {
  const std::string zeros =
      "mov.u32 %r50, 0;\nmov.f32 %f50, 0f00000000;\nst.shared.u32 [%r94], %r50;\n"
      "st.shared.u32 [%r94+128], %r50;\nst.shared.u32 [%r94+256], %r50;\nst.shared.u32 [%r94+384], %r50;\n"
      "bar.warp.sync -1;\nmad.lo.u32 %r1, %r90, 16, %r93;\n";
  const auto load = [](int first) {
    return fmt::format("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r{}, %r{}}}, [%r1];\n", first, first + 1);
  };
  const auto mma = [](int d, int b, int c) {
    return fmt::format(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f{0}, %f{1}, %f{2}, %f{3}}}, "
        "{{%r50, %r50, %r50, %r50}}, {{%r{4}, %r{5}}}, {{%f{6}, %f{6}, %f{6}, %f{6}}};\n",
        d, d + 1, d + 2, d + 3, b, b + 1, c);
  };
  const UsefulWork ahead = useful(kAddresses + zeros + load(10) + load(12) + mma(10, 10, 50) + mma(14, 12, 10) +
                                  "st.global.f32 [%rd2], %f14;\n");
  EXPECT_EQ(ahead.mma_instructions, 2u);
  EXPECT_EQ(ahead.mma_flops, 2u * 4096);
  EXPECT_EQ(ahead.ldmatrix_bytes, 2u * 256);
  EXPECT_EQ(ahead.mmas_loaded_ahead[0], 2u);
  EXPECT_EQ(ahead.mmas_loaded_ahead[1], 1u) << "the second, whose B was loaded before the first";
  EXPECT_EQ(ahead.mmas_loaded_ahead[2], 0u);

  const UsefulWork beside = useful(kAddresses + zeros + load(10) + load(12) + mma(10, 10, 50) + mma(14, 12, 50) +
                                   "st.global.f32 [%rd2], %f14;\n");
  EXPECT_EQ(beside.mma_instructions, 1u);
  EXPECT_EQ(beside.mmas_loaded_ahead[1], 0u) << "an mma that nothing uses is not in between";
}

}  // namespace
}  // namespace flash_ladder::emulator
