// The worker's decisions, protocol and statistics.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "problem/format_bytes.h"
#include "problem/problem.h"
#include "rules/protocol.h"
#include "rules/support.h"
#include "worker/adversarial.h"
#include "worker/check_sets.h"
#include "worker/events.h"
#include "worker/timing.h"

namespace flash_ladder {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t kScoreBytes = 6;

std::size_t workspace_of_naive(const AttentionProblem& problem) {
  return problem.batch * problem.heads * problem.seq_len * problem.seq_len_kv * kScoreBytes;
}

Configuration make_configuration(std::string name, Dtype dtype, int block_q, int block_kv, int smem_bytes) {
  return {.name = std::move(name),
          .dtype = dtype,
          .block_q = block_q,
          .block_kv = block_kv,
          .head_dim = 128,
          .head_dim_v = 128,
          .num_warps = 4,
          .stages = 1,
          .step_kv = 64,
          .smem_bytes = smem_bytes,
          .traits = "",
          .workspace_bytes = no_workspace,
          .launch = {}};
}

Version make_version() {
  return {.number = 6,
          .name = "swizzle",
          .source = "kernels/06_swizzle.cu",
          .configurations = {make_configuration("128x64", Dtype::fp16, 128, 64, 130'000),
                             make_configuration("64x32", Dtype::fp16, 64, 32, 49'152),
                             make_configuration("64x64", Dtype::bf16, 64, 64, 49'152)}};
}

DeviceInfo some_gpu() {
  DeviceInfo gpu;
  gpu.name = "Some GPU";
  gpu.compute_capability = 86;
  gpu.memory_total_bytes = 10'000'000'000;
  gpu.memory_free_bytes = 8'000'000'000;
  gpu.l2_bytes = 5'000'000;
  gpu.smem_per_cta_bytes = 101'376;
  return gpu;
}

const AttentionProblem kProblem{.batch = 2, .heads = 3, .seq_len = 256, .seq_len_kv = 192};

AttentionProblem with(std::int64_t AttentionProblem::* member, std::int64_t value) {
  AttentionProblem problem = kProblem;
  problem.*member = value;
  return problem;
}

std::string unsupported(const AttentionProblem& problem, int configuration = 0) {
  const Version version = make_version();
  return why_unsupported(version, version.configurations[configuration], problem).value_or("");
}

TEST(Support, AProblemOfWholeTilesIsSupported) { EXPECT_EQ(unsupported(kProblem), ""); }

TEST(Support, LengthsAreWholeTiles) {
  EXPECT_THAT(unsupported(with(&AttentionProblem::seq_len, 200)),
              AllOf(HasSubstr("seq-len 200 is not a multiple of 128"), HasSubstr("06_swizzle"),
                    HasSubstr("--seq-len 128 or 256")));
  EXPECT_THAT(unsupported(with(&AttentionProblem::seq_len, 100)), HasSubstr("--seq-len 128"));
  EXPECT_THAT(unsupported(with(&AttentionProblem::seq_len_kv, 100)),
              AllOf(HasSubstr("seq-len-kv 100"), HasSubstr("--seq-len-kv 64 or 128")));
}

TEST(Support, SizesStartAtOneAndFit32Bits) {
  for (const auto member :
       {&AttentionProblem::batch, &AttentionProblem::heads, &AttentionProblem::seq_len, &AttentionProblem::seq_len_kv})
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{1} << 31}) {
      EXPECT_THAT(unsupported(with(member, size)),
                  AllOf(HasSubstr(std::to_string(size)), HasSubstr("allowed: 1 to 2147483647")));
    }
  // The message for a request that is far too large says how large it is.
  EXPECT_THAT(unsupported(with(&AttentionProblem::seq_len, std::int64_t{1} << 40)), HasSubstr("would take 3.4 PB"));
}

TEST(Support, GridsEndAt65535) {
  for (const auto member : {&AttentionProblem::batch, &AttentionProblem::heads}) {
    EXPECT_EQ(unsupported(with(member, 65'535)), "");
    EXPECT_THAT(unsupported(with(member, 70'000)), AllOf(HasSubstr("70000"), HasSubstr("65535")));
  }
}

TEST(Support, HeadDimAndDtypeAreThoseOfTheConfiguration) {
  EXPECT_THAT(unsupported(with(&AttentionProblem::head_dim, 64)),
              AllOf(HasSubstr("head_dim 64"), HasSubstr("allowed: 128")));
  EXPECT_THAT(unsupported(kProblem, 2), AllOf(HasSubstr("64x64"), HasSubstr("computes bf16, not fp16")));
}

TEST(Support, AFieldThatAVersionDoesNotSolveIsRefusedByName) {
  AttentionProblem causal = kProblem;
  causal.causal = true;
  EXPECT_THAT(unsupported(causal), StartsWith("--causal is not supported by 06_swizzle; "));
  Version version = make_version();
  version.solves.causal = true;
  EXPECT_EQ(why_unsupported(version, version.configurations[0], causal), std::nullopt);
  EXPECT_THAT(why_unsupported(version, version.configurations[0],
                              [] {
                                AttentionProblem problem = kProblem;
                                problem.causal = true;
                                problem.seq_len = 200;
                                return problem;
                              }())
                  .value_or(""),
              HasSubstr("seq-len 200"));
}

TEST(Support, EachFieldIsRefusedByItsNameAndTakenWhereItIsSolved) {
  AttentionProblem grouped = kProblem, left = kProblem, right = kProblem, capped = kProblem, alibi = kProblem,
                   sinks = kProblem, dropout = kProblem, lengths = kProblem, lengths_kv = kProblem, paged = kProblem;
  grouped.kv_heads = 1;
  left.window_left = right.window_right = 64;
  capped.softcap = 50;
  alibi.alibi = sinks.sinks = true;
  dropout.dropout_p = 0.1;
  lengths.lengths = {256, 17};
  lengths_kv.lengths_kv = {0, 192};
  paged.page_size = 64;
  const struct {
    const AttentionProblem& problem;
    const char* field;
    bool Solves::* member;
  } fields[] = {{grouped, "--kv-heads", &Solves::kv_heads},
                {left, "--window-left", &Solves::window},
                {right, "--window-right", &Solves::window},
                {capped, "--softcap", &Solves::scores},
                {alibi, "--alibi", &Solves::scores},
                {sinks, "--sinks", &Solves::scores},
                {dropout, "--dropout-p", &Solves::dropout},
                {lengths, "--lengths", &Solves::lengths},
                {lengths_kv, "--lengths-kv", &Solves::lengths},
                {paged, "--page-size", &Solves::paged}};
  for (const auto& [problem, field, member] : fields) {
    EXPECT_THAT(unsupported(problem), AllOf(StartsWith(std::string(field) + " "), HasSubstr("06_swizzle")));
    Version version = make_version();
    version.solves.*member = true;
    EXPECT_EQ(why_unsupported(version, version.configurations[0], problem), std::nullopt) << field;
  }
}

TEST(Support, PagesAreWholeTilesAndBelongToBatchEntries) {
  AttentionProblem paged = kProblem;
  for (const int size : {-16, 8, 16, 48, 64, 4096}) {
    paged.page_size = size;
    const bool allowed = size == 16 || size == 64 || size == 4096;
    EXPECT_THAT(why_impossible(paged).value_or("--page-size " + std::to_string(size) + " is right"),
                HasSubstr("--page-size " + std::to_string(size) + (allowed ? " is right" : " is out of range")));
  }
  paged.packed = true;
  paged.lengths = paged.lengths_kv = {1, 1};
  EXPECT_THAT(why_impossible(paged).value_or(""), AllOf(HasSubstr("--page-size"), HasSubstr("--packed")));
}

TEST(Support, DropoutKeepsSomeWeights) {
  AttentionProblem dropout = kProblem;
  dropout.dropout_p = 1;
  EXPECT_EQ(why_impossible(dropout), "--dropout-p 1 is out of range; allowed: 0 to 0.99609375");
  dropout.dropout_p = -0.1;
  EXPECT_THAT(why_impossible(dropout).value_or(""), StartsWith("--dropout-p -0.1 is out of range"));
  dropout.dropout_p = 255.0 / 256;
  EXPECT_EQ(why_impossible(dropout), std::nullopt);
  dropout.dropout_offset = 1LL << 32;
  EXPECT_EQ(why_impossible(dropout), "--dropout-offset 4294967296 is out of range; allowed: 0 to 4294967295");
}

TEST(Support, PackedSequencesNeedTheirLengthsAndNoWholeTiles) {
  AttentionProblem packed = kProblem;
  packed.packed = true;
  EXPECT_THAT(why_impossible(packed).value_or(""), StartsWith("--packed needs --lengths: "));
  packed.lengths = {0, 0};
  EXPECT_THAT(why_impossible(packed).value_or(""), HasSubstr("sum of --lengths is 0"));
  packed.lengths = {17, 200};
  EXPECT_THAT(why_impossible(packed).value_or(""), StartsWith("--packed needs --lengths-kv: "));
  packed.lengths_kv = {5, 190};
  packed.seq_len = 200;
  packed.seq_len_kv = 190;
  EXPECT_THAT(unsupported(packed), StartsWith("--packed is not supported by 06_swizzle; "));
  Version version = make_version();
  version.solves.packed = true;
  EXPECT_EQ(why_unsupported(version, version.configurations[0], packed), std::nullopt);
  packed.packed = false;
  EXPECT_THAT(why_unsupported(version, version.configurations[0], packed).value_or(""), HasSubstr("--lengths is not"));
}

TEST(Support, FieldsThatNoVersionCanSolveAreRefused) {
  const auto why = [](auto AttentionProblem::* field, auto value) {
    AttentionProblem problem = kProblem;
    problem.*field = value;
    return why_impossible(problem).value_or("");
  };
  EXPECT_THAT(why(&AttentionProblem::kv_heads, 2), StartsWith("--kv-heads 2 does not divide heads 3: "));
  EXPECT_THAT(why(&AttentionProblem::kv_heads, 6), AllOf(StartsWith("--kv-heads 6 "), HasSubstr("heads 3")));
  EXPECT_THAT(why(&AttentionProblem::kv_heads, -1), AllOf(StartsWith("--kv-heads -1 "), HasSubstr("heads 3")));
  EXPECT_THAT(why(&AttentionProblem::window_left, -2),
              AllOf(StartsWith("--window-left -2 "), EndsWith(" 0 to 2147483647")));
  EXPECT_THAT(why(&AttentionProblem::window_right, -2), StartsWith("--window-right -2 "));
  EXPECT_THAT(why(&AttentionProblem::lengths, std::vector<std::int64_t>{1}),
              StartsWith("--lengths has 1 number, and batch is 2; "));
  EXPECT_THAT(why(&AttentionProblem::lengths, std::vector<std::int64_t>{1, 257}),
              AllOf(StartsWith("--lengths 257 "), EndsWith("0 to seq-len 256")));
  EXPECT_THAT(why(&AttentionProblem::lengths_kv, std::vector<std::int64_t>{-1, 0}),
              AllOf(StartsWith("--lengths-kv -1 "), EndsWith("0 to seq-len-kv 192")));
}

TEST(Support, AVersionOfAnyLengthNeedsNoWholeTiles) {
  Version version = make_version();
  version.solves.any_length = true;
  for (const std::int64_t length : {1, 63, 100, 129})
    for (const auto member : {&AttentionProblem::seq_len, &AttentionProblem::seq_len_kv})
      EXPECT_EQ(why_unsupported(version, version.configurations[0], with(member, length)), std::nullopt);
}

TEST(Support, CodeForSm90aRunsOnHopperAlone) {
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    EXPECT_TRUE(runs_on(Architecture::sm_80, capability)) << capability;
    EXPECT_EQ(runs_on(Architecture::sm_90a, capability), capability == 90) << capability;
  }
  EXPECT_FALSE(runs_on(Architecture::sm_80, 75));

  Version version = make_version();
  DeviceInfo gpu = some_gpu();
  EXPECT_EQ(why_not_on_device(version, gpu), std::nullopt);
  version.architecture = Architecture::sm_90a;
  EXPECT_THAT(why_not_on_device(version, gpu).value_or(""),
              AllOf(HasSubstr("06_swizzle"), HasSubstr("sm_90a"), HasSubstr("Some GPU has 8.6")));
  gpu.compute_capability = 90;
  EXPECT_EQ(why_not_on_device(version, gpu), std::nullopt);
  gpu.is_virtual = true;
  EXPECT_EQ(why_not_on_device(version, gpu), std::nullopt);
  gpu.compute_capability = 89;
  EXPECT_THAT(why_not_on_device(version, gpu).value_or(""), HasSubstr("sm_90a"));
}

TEST(Support, SharedMemoryIsWhatTheDeviceHas) {
  const Version version = make_version();
  EXPECT_THAT(why_unsupported_by_device(version, version.configurations[0], some_gpu()).value_or(""),
              AllOf(HasSubstr("130000 bytes"), HasSubstr("Some GPU has 101376"), HasSubstr("--config 64x32")));
  EXPECT_EQ(why_unsupported_by_device(version, version.configurations[1], some_gpu()), std::nullopt);
}

TEST(Support, TheFirstConfigurationThatFitsIsPreferred) {
  const Version version = make_version();
  EXPECT_EQ(preferred_configuration(version, Dtype::fp16, 128, 128, 232'448), &version.configurations[0]);
  EXPECT_EQ(preferred_configuration(version, Dtype::fp16, 128, 128, 101'376), &version.configurations[1]);
  EXPECT_EQ(preferred_configuration(version, Dtype::bf16, 128, 128, 101'376), &version.configurations[2]);
  EXPECT_EQ(preferred_configuration(version, Dtype::bf16, 128, 128, 1'000), nullptr);
}

TEST(Support, TheConfigurationHasTheProblemsHeadDim) {
  Version version = make_version();
  version.configurations.insert(version.configurations.begin(), make_configuration("64", Dtype::fp16, 128, 64, 9'000));
  version.configurations.front().head_dim = version.configurations.front().head_dim_v = 64;
  const Configuration& small = version.configurations[0];
  EXPECT_EQ(preferred_configuration(version, Dtype::fp16, 64, 64, 232'448), &small);
  EXPECT_EQ(preferred_configuration(version, Dtype::fp16, 128, 128, 232'448), &version.configurations[1]);
  AttentionProblem problem = kProblem;
  EXPECT_EQ(find_configuration(version, problem, "", some_gpu()).configuration, &version.configurations[2]);
  EXPECT_THAT(find_configuration(version, problem, "64", some_gpu()).why_none, HasSubstr("it has 128x64, 64x32"));
  problem.head_dim = 64;
  EXPECT_EQ(find_configuration(version, problem, "", some_gpu()).configuration, &small);
  EXPECT_EQ(why_unsupported(version, small, problem), std::nullopt);
  problem.head_dim = 96;
  EXPECT_EQ(why_unsupported(version, *find_configuration(version, problem, "", some_gpu()).configuration, problem),
            "head_dim 96 is not supported by 06_swizzle; allowed: 64, 128");
  EXPECT_THAT(head_dims(version, Dtype::fp16), testing::ElementsAre(64, 128));
}

TEST(Support, MemoryCountsTensorsWorkspaceAndFlush) {
  Version version = make_version();
  Configuration& configuration = version.configurations[0];
  configuration.workspace_bytes = workspace_of_naive;
  const AttentionProblem large{.batch = 16, .heads = 16, .seq_len = 4096, .seq_len_kv = 4096};
  const double needed = memory_needed_bytes(configuration, large, some_gpu().l2_bytes);
  EXPECT_NEAR(needed, 4 * 2.0 * 16 * 16 * 4096 * 128 + 6.0 * 16 * 16 * 4096 * 4096 + 10e6,
              12e6);  // and the guard bands
  EXPECT_THAT(why_no_memory(version, configuration, large, some_gpu()).value_or(""),
              AllOf(HasSubstr("26.9 GB"), HasSubstr("8.0 GB of 10.0 GB are free on Some GPU")));
  EXPECT_EQ(why_no_memory(version, configuration, kProblem, some_gpu()), std::nullopt);
}

TEST(Support, AbsurdSizesDoNotOverflow) {
  Version version = make_version();
  Configuration& configuration = version.configurations[0];
  configuration.workspace_bytes = workspace_of_naive;
  constexpr std::int64_t kLong = (std::int64_t{1} << 31) - 128;
  const AttentionProblem absurd{.batch = 65'535, .heads = 65'535, .seq_len = kLong, .seq_len_kv = kLong};
  EXPECT_GT(memory_needed_bytes(configuration, absurd, 0), 1e21);
  EXPECT_THAT(why_no_memory(version, configuration, absurd, some_gpu()).value_or(""), HasSubstr("PB of GPU memory"));
}

TEST(Support, GpusBeforeAmpereAreRefused) {
  DeviceInfo device = some_gpu();
  EXPECT_EQ(why_unusable(device), std::nullopt);
  device.compute_capability = 75;
  EXPECT_THAT(why_unusable(device).value_or(""), AllOf(HasSubstr("Some GPU has compute capability 7.5"),
                                                       HasSubstr("8.0 or newer"), HasSubstr("--device gpu:N")));
}

TEST(Support, SaysWhyThereIsNoGpu) {
  const DriverState fine{.driver_version = 13000, .runtime_version = 13000, .device_count = 2, .error = ""};
  EXPECT_EQ(why_no_device(fine, 1), std::nullopt);
  EXPECT_THAT(why_no_device(fine, 2).value_or(""), HasSubstr("GPU 2 does not exist; allowed: 0 to 1"));
  EXPECT_THAT(why_no_device(fine, -1).value_or(""), HasSubstr("GPU -1 "));

  DriverState none;
  none.runtime_version = 13000;
  none.error = "CUDA driver version is insufficient for CUDA runtime version";
  EXPECT_THAT(why_no_device(none, 0).value_or(""), HasSubstr("no NVIDIA driver was found"));

  DriverState old = none;
  old.driver_version = 12040;
  EXPECT_THAT(why_no_device(old, 0).value_or(""),
              AllOf(HasSubstr("CUDA 12.4"), HasSubstr("CUDA 13.0"), HasSubstr("update the driver")));

  DriverState hidden = fine;
  hidden.device_count = 0;
  EXPECT_THAT(why_no_device(hidden, 0).value_or(""), HasSubstr("CUDA_VISIBLE_DEVICES"));

  DriverState broken = fine;
  broken.error = "initialization error";
  EXPECT_THAT(why_no_device(broken, 0).value_or(""), HasSubstr("initialization error"));
}

TEST(Support, BytesAreReadable) {
  EXPECT_EQ(format_bytes(12), "12 bytes");
  EXPECT_EQ(format_bytes(1'500), "1.5 KB");
  EXPECT_EQ(format_bytes(25.8e9), "25.8 GB");
}

TEST(CheckSets, HaveTheFourDistributionsSeveralNumbersOfTilesAndStridesOfAllKinds) {
  for (const auto& [block_q, block_kv] :
       {std::pair{64, 64}, {16, 16}, {16, 1}, {128, 64}, {256, 128}, {64, 32}, {128, 176}, {128, 96}}) {
    const Configuration configuration = make_configuration("", Dtype::bf16, block_q, block_kv, 0);
    const Version version{
        .number = 6, .name = "swizzle", .source = "kernels/06_swizzle.cu", .configurations = {configuration}};
    AttentionProblem requested = kProblem;
    requested.dtype = Dtype::bf16;
    requested.seq_len = 2048;
    requested.seq_len_kv = 16 * block_kv;
    const auto sets = check_sets(version, configuration, requested, {});
    std::set<Distribution> with_odd_tiles;
    bool single = false, packed = false, with_gaps = false, alone = false, ring = false, adversarial = false,
         many_q_tiles = false;
    std::set<int> sms;
    for (const CheckSet& set : sets) {
      EXPECT_EQ(why_unsupported(version, configuration, set.problem), std::nullopt) << set.name;
      EXPECT_GE(set.launches, 2);
      const bool last = &set == &sets.back();
      EXPECT_EQ(set.problem == requested, last);
      if (last) continue;
      EXPECT_EQ(set.row_tile, 1);
      sms.insert(set.sms);
      const std::int64_t tiles = set.problem.seq_len_kv / block_kv;
      if (set.distribution == Distribution::adversarial) {
        adversarial = true;
        EXPECT_EQ(set.problem.heads, kDesignedHeads) << "all that are designed";
        continue;
      }
      if (set.problem.batch == 1) {
        EXPECT_EQ(set.problem.heads, 1);
        if (set.problem.seq_len != block_q) {
          many_q_tiles = true;
          EXPECT_EQ(tiles, 1);
          EXPECT_GE(set.problem.seq_len, 3 * block_q);
          EXPECT_LE(set.problem.seq_len * block_kv, (1 << 15) + 3 * block_q * block_kv) << "the check takes its time";
          continue;
        }
        alone = alone || tiles == 1;
        ring = ring || tiles > 3;
        continue;
      }
      EXPECT_EQ(set.problem.batch, 2);
      EXPECT_EQ(set.problem.heads, 3);
      EXPECT_GE(set.problem.seq_len, 2 * block_q);
      if (tiles >= 3 && tiles % 2 == 1) with_odd_tiles.insert(set.distribution);
      single = single || tiles == 1;
      if (set.packing == Packing::with_gaps) {
        with_gaps = true;
        EXPECT_EQ(set.problem.seq_len, 3 * block_q) << "an odd number, and as many as heads";
        EXPECT_EQ(tiles, 2);
      }
      if (set.packing != Packing::packed_qkv) continue;
      packed = true;
      EXPECT_GE(tiles, 2);
      EXPECT_LE(set.problem.seq_len, 8 * std::max(block_q, block_kv)) << "the check takes its time";
    }
    EXPECT_EQ(with_odd_tiles.size(), 4u);
    EXPECT_TRUE(single);
    EXPECT_TRUE(adversarial);
    EXPECT_TRUE(packed);
    EXPECT_TRUE(with_gaps);
    EXPECT_TRUE(alone);
    EXPECT_TRUE(ring);
    EXPECT_TRUE(many_q_tiles);
    EXPECT_EQ(sms, (std::set{0, 2, 3, 5}));
  }
}

TEST(CheckSets, ARingOfBuffersGoesRoundFourTimes) {
  Configuration configuration = make_configuration("", Dtype::fp16, 128, 64, 0);
  const Version version{
      .number = 6, .name = "swizzle", .source = "kernels/06_swizzle.cu", .configurations = {configuration}};
  for (int stages = 1; stages < 5; ++stages) {
    configuration.stages = stages;
    const auto sets = check_sets(version, configuration, kProblem, {});
    EXPECT_TRUE(
        std::ranges::any_of(sets, [&](const CheckSet& set) { return set.problem.seq_len_kv / 64 > 4 * stages; }));
  }
}

// The virtual GPU can be given few SMs; a GPU needs more CTAs than it runs at a time.
TEST(CheckSets, AGpuGetsMoreQueryTilesThanItRunsAtATime) {
  // Two of these CTAs fit on an SM with 228 KB, and sixteen of those without shared memory, limited by their threads.
  for (const auto& [smem_bytes, ctas] : {std::pair{100'000, 2 * 132}, {0, 16 * 132}}) {
    const Configuration configuration = make_configuration("", Dtype::fp16, 128, 64, smem_bytes);
    const Version version{
        .number = 6, .name = "swizzle", .source = "kernels/06_swizzle.cu", .configurations = {configuration}};
    DeviceInfo device;
    device.compute_capability = 90;
    device.sm_count = 132;
    const auto most_tiles = [&] {
      std::int64_t most = 0;
      for (const CheckSet& set : check_sets(version, configuration, kProblem, device))
        most = std::max(most, set.problem.batch * set.problem.heads * set.problem.seq_len / 128);
      return most;
    };
    EXPECT_GT(most_tiles(), 2 * ctas);
    EXPECT_LT(most_tiles(), 3 * ctas);
    EXPECT_NE(most_tiles() % ctas, 0) << "some CTAs take one more";
    device.is_virtual = true;
    EXPECT_LT(most_tiles(), 20);
  }
}

TEST(CheckSets, LargeProblemsHaveARowOfEveryQueryTile) {
  const AttentionProblem small{.batch = 1, .heads = 2, .seq_len = 256, .seq_len_kv = 256};
  const AttentionProblem large{.batch = 16, .heads = 16, .seq_len = 4096, .seq_len_kv = 4096};
  EXPECT_EQ(row_tile(small, 64), 1);
  EXPECT_EQ(row_tile(large, 64), 64);
  EXPECT_EQ(row_tile(large, 256), 64);  // shares the reference with 64
  EXPECT_EQ(row_tile(large, 16), 16);
  EXPECT_EQ(row_tile(large, 96), 32);
}

TEST(Timing, SummarisesByInterpolation) {
  const Milliseconds eleven = summarise({11, 1, 10, 2, 9, 3, 8, 4, 7, 5, 6});
  EXPECT_DOUBLE_EQ(eleven.median, 6);
  EXPECT_DOUBLE_EQ(eleven.p10, 2);
  EXPECT_DOUBLE_EQ(eleven.p90, 10);
  const Milliseconds two = summarise({2, 1});
  EXPECT_DOUBLE_EQ(two.median, 1.5);
  EXPECT_DOUBLE_EQ(two.p10, 1.1);
  const Milliseconds one = summarise({3});
  EXPECT_DOUBLE_EQ(one.p90, 3);
}

TEST(Timing, CountsTheOperationsOfBothProducts) {
  const AttentionProblem problem{.batch = 16, .heads = 16, .seq_len = 4096, .seq_len_kv = 2048};
  EXPECT_DOUBLE_EQ(tflops(problem, 2), 4.0 * 16 * 16 * 4096 * 2048 * 128 / 2e-3 * 1e-12);
}

TEST(Protocol, RequestsSurviveTheWayThroughJson) {
  Request request;
  request.device = 1;
  request.kernel = 7;
  request.config = "64x64";
  request.problem = kProblem;
  request.seed = 0xfedcba9876543210;
  request.check = false;
  request.benchmark = false;
  request.repeat = 5;
  request.configs = {"64x64", "128x64"};
  request.only_requested_problem = true;
  request.stop_when_wrong = true;
  request.launches = 100;
  request.reference_cache = "/tmp/references";
  const json first = request;
  EXPECT_EQ(json(json::parse(first.dump()).get<Request>()), first);
  EXPECT_EQ(first.at("seed"), 0xfedcba9876543210);
}

TEST(Protocol, ARequestForTheDeviceNeedsNoProblem) {
  EXPECT_EQ(json::parse(R"({"command": "device", "device": 2})").get<Request>().device, 2);
}

TEST(Protocol, WrongRequestsSayWhatIsWrong) {
  const auto message = [](const json& request) -> std::string {
    try {
      request.get<Request>();
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  json good = Request{};
  EXPECT_EQ(message(good), "");
  const auto changed = [&](const char* member, const json& value) {
    json request = good;
    request[member] = value;
    return message(request);
  };
  EXPECT_THAT(changed("command", "dance"), AllOf(HasSubstr("dance"), HasSubstr("allowed: debug, device, run, time")));
  EXPECT_THAT(changed("command", "time"), HasSubstr("\"configs\" is empty"));
  EXPECT_THAT(changed("launches", -1), HasSubstr("launches -1"));
  EXPECT_THAT(changed("repeat", 0), HasSubstr("repeat 0"));
  EXPECT_THAT(changed("kernel", 7), HasSubstr("must be string"));
  json no_problem = good;
  no_problem.erase("problem");
  EXPECT_THAT(message(no_problem), HasSubstr("problem"));
  json other_dtype = good;
  other_dtype["problem"]["dtype"] = "fp8";
  EXPECT_THAT(message(other_dtype), HasSubstr("fp8"));
}

TEST(Protocol, WhatIsNotKnownOfADeviceIsNull) {
  const json nothing = DeviceInfo{};
  for (const auto& [member, value] : nothing.items())
    EXPECT_TRUE(member == "is_virtual" ? value == false : value.is_null()) << member;
  EXPECT_EQ(json(nothing.get<DeviceInfo>()), nothing);
  const json gpu = some_gpu();
  EXPECT_EQ(json(gpu.get<DeviceInfo>()), gpu);
  EXPECT_EQ(gpu.at("l2_bytes"), 5'000'000);
}

class Events : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(ends_), 0); }
  void TearDown() override {
    for (const int end : ends_)
      if (end != -1) close(end);
  }
  std::string written() {
    close(ends_[1]);
    ends_[1] = -1;
    std::string text(1 << 16, '\0');
    text.resize(read(ends_[0], text.data(), text.size()));
    return text;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(Events, AreOneObjectALine) {
  EventWriter events(ends_[1]);
  events.write({{"event", "error"}, {"message", "two\nlines"}});
  events.progress("check", 3, 20);
  const std::string text = written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  const std::size_t end = text.find('\n');
  EXPECT_EQ(json::parse(text.substr(0, end)).at("message"), "two\nlines");
  EXPECT_EQ(json::parse(text.substr(end)),
            json::parse(R"({"event": "progress", "what": "check", "done": 3, "total": 20})"));
}

TEST_F(Events, ProgressIsNotAFlood) {
  EventWriter events(ends_[1]);
  for (int i = 0; i <= 1000; ++i) events.progress("check", i, 1000);
  events.progress("time", 0, 1);  // a new text is reported immediately
  const std::string text = written();
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_THAT(text, AllOf(HasSubstr("\"done\":1000"), HasSubstr("\"time\"")));
}

TEST_F(Events, TextThatIsNotUtf8StillArrives) {
  EventWriter events(ends_[1]);
  events.write({{"event", "error"}, {"message", "file \xff"}});
  EXPECT_THAT(written(), HasSubstr("file "));
}

}  // namespace
}  // namespace flash_ladder
