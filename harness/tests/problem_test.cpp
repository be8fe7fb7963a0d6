// The problem that is computed and the file that computes it: problems, the paths of kernels, and the order of versions.
#include "problem/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "host/backward.h"
#include "host/versions.h"
#include "philox.h"
#include "problem/distribution.h"

namespace flash_ladder {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const AttentionProblem kPlain{.batch = 2, .heads = 3, .seq_len = 128, .seq_len_kv = 192};

// Problems that each differ from kPlain in one field: one for every field.
std::vector<AttentionProblem> each_field_changed() {
  std::vector<AttentionProblem> problems;
  const auto add = [&](auto AttentionProblem::* field, auto value) {
    problems.push_back(kPlain);
    problems.back().*field = value;
  };
  add(&AttentionProblem::batch, 7);
  add(&AttentionProblem::heads, 7);
  add(&AttentionProblem::seq_len, 7);
  add(&AttentionProblem::seq_len_kv, 7);
  add(&AttentionProblem::head_dim, 7);
  add(&AttentionProblem::head_dim_v, 7);
  add(&AttentionProblem::dtype, Dtype::bf16);
  add(&AttentionProblem::causal, true);
  add(&AttentionProblem::kv_heads, 1);
  add(&AttentionProblem::window_left, 0);
  add(&AttentionProblem::window_right, 1);
  add(&AttentionProblem::lengths, std::vector<std::int64_t>{128, 0});
  add(&AttentionProblem::lengths_kv, std::vector<std::int64_t>{1, 192});
  add(&AttentionProblem::packed, true);
  add(&AttentionProblem::page_size, 64);
  add(&AttentionProblem::append, true);
  add(&AttentionProblem::rotary_dim, 64);
  problems.push_back(problems.back());  // without rotary_dim, it has no effect
  problems.back().rotary_interleaved = true;
  add(&AttentionProblem::fp8_cache, true);
  add(&AttentionProblem::softcap, 2.5);
  add(&AttentionProblem::alibi, true);
  add(&AttentionProblem::sinks, true);
  add(&AttentionProblem::dropout_p, 0.25);
  add(&AttentionProblem::dropout_seed, 7);
  add(&AttentionProblem::dropout_offset, 7);
  return problems;
}

TEST(Problem, EveryFieldIsDescribedHashedOrderedAndInJson) {
  std::set<std::string> described{describe(kPlain)}, files{file_name_part(kPlain)}, documents{json(kPlain).dump()};
  const auto problems = each_field_changed();
  for (const AttentionProblem& problem : problems) {
    EXPECT_NE(problem, kPlain);
    EXPECT_TRUE(described.insert(describe(problem)).second) << describe(problem);
    EXPECT_TRUE(files.insert(file_name_part(problem)).second) << file_name_part(problem);
    EXPECT_TRUE(documents.insert(json(problem).dump()).second) << json(problem);
    EXPECT_EQ(json(problem).get<AttentionProblem>(), problem);
    EXPECT_NE(comes_before(problem, kPlain), comes_before(kPlain, problem));
  }
  EXPECT_FALSE(comes_before(kPlain, kPlain));
}

TEST(Problem, APlainOneIsDescribedWithoutWhatItHasNot) {
  EXPECT_EQ(describe({.batch = 16, .heads = 16, .seq_len = 4096, .seq_len_kv = 4096}),
            "batch 16, heads 16, seq_len 4096, head_dim 128, fp16");
  EXPECT_EQ(describe({.heads = 2, .seq_len = 3, .seq_len_kv = 5, .dtype = Dtype::bf16, .causal = true}),
            "batch 1, heads 2, seq_len 3, seq_len_kv 5, head_dim 128, bf16, causal");
  AttentionProblem grouped{.heads = 8, .seq_len = 9, .seq_len_kv = 9, .kv_heads = 2, .lengths = {7}};
  grouped.window_left = 3;
  grouped.lengths_kv = {5};
  EXPECT_EQ(describe(grouped),
            "batch 1, heads 8, kv_heads 2, seq_len 9, head_dim 128, fp16, window_left 3, lengths 7, lengths_kv 5");
  grouped.lengths = grouped.lengths_kv = {3, 9, 1, 2, 4, 5, 6, 7, 8};
  EXPECT_THAT(describe(grouped), HasSubstr(", window_left 3, lengths of 1 to 9"));
}

// Recordings made before the field existed remain unchanged, byte for byte.
TEST(Problem, AnExtensionsFieldIsInJsonOnlyWhereItIsNotTheDefault) {
  EXPECT_EQ(json(kPlain).size(), 6u);
  AttentionProblem causal = kPlain;
  causal.causal = true;
  EXPECT_EQ(json(causal).at("causal"), true);
  EXPECT_EQ(json(causal).size(), 7u);
  json unknown = kPlain;
  unknown["dtype"] = "fp8";
  EXPECT_THROW(unknown.get<AttentionProblem>(), std::runtime_error);
}

TEST(Problem, ACausalQuerySeesKeysUpToTheDiagonalThatEndsAtTheLowerRight) {
  const auto ends = [](std::int64_t seq_len, std::int64_t seq_len_kv) {
    const AttentionProblem problem{.seq_len = seq_len, .seq_len_kv = seq_len_kv, .causal = true};
    std::vector<std::int64_t> all;
    for (std::int64_t query = 0; query < seq_len; ++query) {
      EXPECT_EQ(visible_keys(problem, 0, query).begin, 0);
      all.push_back(visible_keys(problem, 0, query).end);
    }
    return all;
  };
  EXPECT_THAT(ends(4, 4), ElementsAre(1, 2, 3, 4));
  // The two examples in flash-attention's README, "2.1: Change behavior of causal flag".
  EXPECT_THAT(ends(2, 5), ElementsAre(4, 5));
  EXPECT_THAT(ends(5, 2), ElementsAre(0, 0, 0, 1, 2));
  EXPECT_EQ(visible_keys(kPlain, 0, 0).end, kPlain.seq_len_kv);
}

// "0-2 1-4 …": for each query, the first key that it sees and the one after the last.
std::string seen(const AttentionProblem& problem, std::int64_t batch = 0) {
  std::string text;
  for (std::int64_t query = 0; query < problem.seq_len; ++query) {
    const auto [begin, end] = visible_keys(problem, batch, query);
    text += (query == 0 ? "" : " ") + (begin == end ? "-" : std::to_string(begin) + "-" + std::to_string(end));
  }
  return text;
}

TEST(Problem, AWindowIsAroundTheAlignedKey) {
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_left = 1, .window_right = 1}), "0-2 0-3 1-4 2-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_left = 0, .window_right = 0}), "0-1 1-2 2-3 3-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .causal = true, .window_left = 1, .window_right = 1}),
            "0-1 0-2 1-3 2-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_left = 1}), "0-4 0-4 1-4 2-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_right = 1}), "0-2 0-3 0-4 0-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_left = 0, .window_right = 2}), "0-3 1-4 2-4 3-4");
  EXPECT_EQ(seen({.seq_len = 4, .seq_len_kv = 4, .window_left = 2, .window_right = 0}), "0-1 0-2 0-3 1-4");
  // Query i is aligned with key i + 3, and with key i - 3.
  EXPECT_EQ(seen({.seq_len = 2, .seq_len_kv = 5, .window_left = 1, .window_right = 1}), "2-5 3-5");
  EXPECT_EQ(seen({.seq_len = 5, .seq_len_kv = 2, .window_left = 1, .window_right = 1}), "- - 0-1 0-2 0-2");
  EXPECT_EQ(seen({.seq_len = 5, .seq_len_kv = 2, .causal = true, .window_left = 1, .window_right = 1}),
            "- - - 0-1 0-2");
}

TEST(Problem, ASequencesLengthsTakeThePlaceOfAllInTheMasks) {
  AttentionProblem problem{.batch = 3, .seq_len = 4, .seq_len_kv = 4, .lengths = {4, 2, 3}, .lengths_kv = {4, 3, 0}};
  EXPECT_EQ(seen(problem, 0), "0-4 0-4 0-4 0-4");
  EXPECT_EQ(seen(problem, 1), "0-3 0-3 - -");
  EXPECT_EQ(seen(problem, 2), "- - - -");
  problem.causal = true;
  EXPECT_EQ(seen(problem, 0), "0-1 0-2 0-3 0-4");
  EXPECT_EQ(seen(problem, 1), "0-2 0-3 - -");
  problem.window_left = 0;
  EXPECT_EQ(seen(problem, 1), "1-2 2-3 - -");
}

TEST(Problem, PackedSequencesHaveNoPadding) {
  AttentionProblem problem{
      .batch = 3, .heads = 2, .seq_len = 4, .seq_len_kv = 5, .lengths = {4, 0, 3}, .lengths_kv = {1, 2, 5}};
  EXPECT_EQ(num_rows(problem, 1), 4);
  EXPECT_EQ(num_rows_kv(problem, 1), 5);
  EXPECT_EQ(total_rows(problem), 12);
  EXPECT_THAT(first_rows(problem), ElementsAre());
  problem.packed = true;
  EXPECT_EQ(num_rows(problem, 1), 0);
  EXPECT_EQ(num_rows_kv(problem, 1), 2);
  EXPECT_THAT(first_rows(problem), ElementsAre(0, 4, 4, 7));
  EXPECT_THAT(first_rows_kv(problem), ElementsAre(0, 1, 3, 8));
  EXPECT_EQ(total_rows(problem), 7);
  EXPECT_EQ(total_rows_kv(problem), 8);
  problem.head_dim = 4;
  EXPECT_EQ(tensor_bytes(problem), 2 * 2 * 4 * (7 + 8 + 8 + 7));
  problem.lengths = problem.lengths_kv = {4, 4, 4};
  EXPECT_EQ(in_plainest_form(problem), problem) << "the lengths are needed, even if all are the longest";
}

TEST(Problem, AHeadReadsTheHeadOfItsGroup) {
  const AttentionProblem grouped{.heads = 6, .kv_heads = 2};
  std::vector<std::int64_t> heads;
  for (std::int64_t head = 0; head < 6; ++head) heads.push_back(kv_head(grouped, head));
  EXPECT_THAT(heads, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_EQ(num_kv_heads(grouped), 2);
  EXPECT_EQ(num_kv_heads(kPlain), kPlain.heads);
  EXPECT_EQ(kv_head(kPlain, 2), 2);
}

TEST(Problem, WhatSaysNothingIsLeftOut) {
  AttentionProblem wordy = kPlain;
  wordy.kv_heads = wordy.heads;
  wordy.window_left = 191;   // the last query sees the first key
  wordy.window_right = 127;  // the first query sees the last key
  wordy.lengths = {128, 128};
  wordy.lengths_kv = {192, 192};
  EXPECT_EQ(in_plainest_form(wordy), kPlain);
  json document = kPlain;
  document["kv_heads"] = 3;
  EXPECT_EQ(document.get<AttentionProblem>(), kPlain);
  for (const AttentionProblem& problem : each_field_changed()) EXPECT_EQ(in_plainest_form(problem), problem);
  wordy = kPlain;
  wordy.window_left = 190;
  wordy.window_right = 126;
  wordy.lengths = {128};  // one is missing
  EXPECT_EQ(in_plainest_form(wordy), wordy);
}

TEST(Problem, AWindowWithoutKeysToTheRightIsTheCausalMask) {
  AttentionProblem causal = kPlain, window = kPlain;
  causal.causal = true;
  window.window_right = 0;
  EXPECT_EQ(in_plainest_form(window), causal);
  window.causal = true;
  window.window_right = 5;  // causal hides more
  EXPECT_EQ(in_plainest_form(window), causal);
  window.window_left = causal.window_left = 7;
  EXPECT_EQ(in_plainest_form(window), causal);
  for (const AttentionProblem& problem : {window, causal}) EXPECT_EQ(seen(in_plainest_form(problem)), seen(problem));
}

// Values next to those that hide no key: the plainest form never changes the keys that a query sees.
TEST(Problem, ThePlainestFormSeesTheSameKeys) {
  for (const std::int64_t seq_len : {1, 3, 6})
    for (const std::int64_t seq_len_kv : {1, 3, 6})
      for (std::int64_t left = kNoWindow; left <= 6; ++left)
        for (std::int64_t right = kNoWindow; right <= 6; ++right)
          for (const bool causal : {false, true}) {
            AttentionProblem problem{.seq_len = seq_len, .seq_len_kv = seq_len_kv, .causal = causal};
            problem.window_left = left;
            problem.window_right = right;
            EXPECT_EQ(seen(in_plainest_form(problem)), seen(problem)) << describe(problem);
            EXPECT_EQ(in_plainest_form(in_plainest_form(problem)), in_plainest_form(problem)) << describe(problem);
          }
}

TEST(Problem, WorkOfACausalOneIsHalf) {
  EXPECT_EQ(floating_point_operations(kPlain), 4.0 * 2 * 3 * 128 * 192 * 128);
  AttentionProblem causal = kPlain;
  causal.causal = true;
  EXPECT_EQ(floating_point_operations(causal), floating_point_operations(kPlain) / 2);
}

TEST(Problem, WorkIsThatOfTheScoresThatCount) {
  const double of_a_score = 4.0 * 2 * 128;  // two heads
  const auto scores = [&](AttentionProblem problem) {
    problem.heads = 2;
    return floating_point_operations(problem) / of_a_score;
  };
  EXPECT_EQ(scores({.batch = 3, .seq_len = 4, .seq_len_kv = 4, .kv_heads = 1}), 48);
  EXPECT_EQ(scores({.batch = 3, .seq_len = 4, .seq_len_kv = 4, .window_left = 1, .window_right = 1}),
            3 * (2 + 3 + 3 + 2));
  EXPECT_EQ(scores({.batch = 3, .seq_len = 4, .seq_len_kv = 4, .causal = true, .window_left = 1, .window_right = 1}),
            3 * (1 + 2 + 2 + 2));
  EXPECT_EQ(scores({.batch = 2, .seq_len = 4, .seq_len_kv = 4, .lengths = {4, 3}, .lengths_kv = {2, 1}}), 8 + 3);
  EXPECT_EQ(scores({.batch = 2, .seq_len = 4, .seq_len_kv = 4, .causal = true, .lengths = {4, 2}}), 8 + 4);
}

TEST(Problem, FewerHeadsOfKAndVAreFewerBytes) {
  EXPECT_EQ(tensor_bytes({.batch = 2, .heads = 8, .seq_len = 3, .seq_len_kv = 5, .head_dim = 4, .kv_heads = 2}),
            2 * 2 * (2 * 3 * 8 * 4 + 2 * 5 * 2 * 4));
}

TEST(Problem, VAndOMayHaveOtherRowsThanQAndK) {
  AttentionProblem problem{.batch = 2, .heads = 8, .seq_len = 3, .seq_len_kv = 5, .head_dim = 6, .kv_heads = 2};
  problem.head_dim_v = 6;  // as that of Q and K
  EXPECT_EQ(in_plainest_form(problem).head_dim_v, 0);
  problem.head_dim_v = 4;
  EXPECT_EQ(in_plainest_form(problem), problem);
  EXPECT_EQ(describe(problem), "batch 2, heads 8, kv_heads 2, seq_len 3, seq_len_kv 5, head_dim 6, head_dim_v 4, fp16");
  EXPECT_EQ(tensor_bytes(problem), 2 * 2 * (3 * 8 * 6 + 5 * 2 * 6 + 5 * 2 * 4 + 3 * 8 * 4));  // Q, K, V, O
  EXPECT_EQ(floating_point_operations(problem), 2 * 8 * (2 * 3 * 5 * 6 + 2 * 3 * 5 * 4));     // Q Kᵀ and P V
}

TEST(Problem, ALaunchGetsAllOfIt) {
  int memory[5];
  AttentionProblem problem = kPlain;
  problem.causal = true;
  const ExtendedArgs args =
      launch_args(problem, {{&memory[0], 1, 2, 3}, {&memory[1]}, {&memory[2]}, {&memory[3]}}, 0.5f, &memory[4]);
  EXPECT_EQ(args.Q.data, &memory[0]);
  EXPECT_EQ(args.Q.head_stride, 3);
  EXPECT_EQ(args.K.data, &memory[1]);
  EXPECT_EQ(args.V.data, &memory[2]);
  EXPECT_EQ(args.O.data, &memory[3]);
  EXPECT_EQ(args.workspace, &memory[4]);
  EXPECT_EQ(args.batch, 2);
  EXPECT_EQ(args.heads, 3);
  EXPECT_EQ(args.seq_len, 128);
  EXPECT_EQ(args.seq_len_kv, 192);
  EXPECT_EQ(args.softmax_scale, 0.5f);
  EXPECT_TRUE(args.causal);
  EXPECT_EQ(args.kv_heads, 3);
  EXPECT_LT(args.window_left, 0);
  EXPECT_LT(args.window_right, 0);
  EXPECT_EQ(args.lengths, nullptr);
  EXPECT_EQ(args.lengths_kv, nullptr);

  problem.kv_heads = 1;
  problem.window_left = 5;
  problem.window_right = 7;
  problem.lengths = {128, 1};
  const ExtendedArgs extended = launch_args(
      problem, {.Q = {}, .K = {}, .V = {}, .O = {}, .lengths = &memory[2], .lengths_kv = &memory[3]}, 0.5f, nullptr);
  EXPECT_EQ(extended.kv_heads, 1);
  EXPECT_EQ(extended.window_left, 5);
  EXPECT_EQ(extended.window_right, 7);
  EXPECT_EQ(extended.lengths, &memory[2]);
  EXPECT_EQ(extended.lengths_kv, nullptr);
}

TEST(Problem, ALaunchOfPackedSequencesGetsWhereTheyBegin) {
  int offsets[4], offsets_kv[4];
  float numbers[3];
  AttentionProblem problem{.batch = 3,
                           .heads = 1,
                           .seq_len = 4,
                           .seq_len_kv = 5,
                           .lengths = {4, 0, 3},
                           .lengths_kv = {1, 2, 5},
                           .packed = true,
                           .softcap = 2.5};
  Tensors tensors{.Q = {.data = nullptr, .batch_stride = 9}, .K = {}, .V = {}, .O = {}};
  tensors.lengths = tensors.offsets = offsets;
  tensors.lengths_kv = tensors.offsets_kv = offsets_kv;
  tensors.alibi_slopes = &numbers[0];
  tensors.sinks = &numbers[1];
  const ExtendedArgs args = launch_args(problem, tensors, 0.5f, nullptr);
  EXPECT_EQ(args.Q.batch_stride, 0);
  EXPECT_EQ(args.offsets, offsets);
  EXPECT_EQ(args.offsets_kv, offsets_kv);
  EXPECT_EQ(args.lengths, nullptr);
  EXPECT_EQ(args.lengths_kv, nullptr);
  EXPECT_EQ(args.batch, 3);
  EXPECT_EQ(args.seq_len, 4);
  EXPECT_EQ(args.total, 7);
  EXPECT_EQ(args.total_kv, 8);
  EXPECT_EQ(args.softcap, 2.5f);
  EXPECT_EQ(args.alibi_slopes, nullptr) << "the problem has none";
  EXPECT_EQ(args.sinks, nullptr);
  problem.alibi = problem.sinks = true;
  problem.packed = false;
  const ExtendedArgs padded = launch_args(problem, tensors, 0.5f, nullptr);
  EXPECT_EQ(padded.alibi_slopes, &numbers[0]);
  EXPECT_EQ(padded.sinks, &numbers[1]);
  EXPECT_EQ(padded.offsets, nullptr);
  EXPECT_EQ(padded.lengths, offsets);
  EXPECT_EQ(padded.total, 0);
}

// Random123, tests/kat_vectors: "philox4x32 10", the counter, the key, and the expected words.
TEST(Philox, HasThePublishedKnownAnswers) {
  const struct {
    PhiloxBlock counter;
    std::uint64_t key;  // its first word is the lower half
    PhiloxBlock expected;
  } cases[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       0xffffffffffffffff,
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& [counter, key, expected] : cases) {
    const auto [x, y, z, w] = philox4x32_10(counter, key);
    EXPECT_THAT((std::array{x, y, z, w}), ElementsAre(expected.x, expected.y, expected.z, expected.w));
  }
}

TEST(Philox, EveryKeyOfABlockHasAByteOfItsOwn) {
  std::set<int> bytes;
  for (int key = 0; key < kDropoutKeys; ++key) bytes.insert(dropout_byte(key));
  EXPECT_EQ(bytes.size(), 16u);
  EXPECT_EQ(*bytes.rbegin(), 15);
  EXPECT_EQ(dropout_byte(16 + 9), dropout_byte(9)) << "the second block";
  for (const int lane : {0, 1, 2, 3}) {  // the bytes of a word are the keys that a lane has
    const int first = 2 * lane;
    EXPECT_EQ(dropout_byte(first), 4 * lane);
    EXPECT_EQ(dropout_byte(first + 1), 4 * lane + 1);
    EXPECT_EQ(dropout_byte(first + 8), 4 * lane + 2);
    EXPECT_EQ(dropout_byte(first + 9), 4 * lane + 3);
  }
}

TEST(Philox, KeepsTheShareThatWasAskedFor) {
  EXPECT_EQ(dropout_keep(0), 256);
  EXPECT_EQ(dropout_keep(0.1), 230);
  EXPECT_EQ(dropout_keep(0.5), 128);
  EXPECT_EQ(dropout_keep(255.0 / 256), 1);
  const int keep = 230, rows = 200, keys = 320;
  int kept = 0;
  for (int row = 0; row < rows; ++row)
    for (int key = 0; key < keys; ++key) kept += is_kept(7, 0, 3, row, key, keep);
  const double mean = rows * keys * keep / 256.0, deviation = std::sqrt(mean * (1 - keep / 256.0));
  EXPECT_NEAR(kept, mean, 4 * deviation);
  EXPECT_TRUE(is_kept(7, 0, 3, 0, 0, 256)) << "no byte reaches 256";
  // Each coordinate of a position matters: about 8 of 16 decisions differ.
  const auto mask = [](std::uint64_t seed, std::uint32_t offset, int head, int row) {
    int bits = 0;
    for (int key = 0; key < 16; ++key) bits |= is_kept(seed, offset, head, row, key, 128) << key;
    return bits;
  };
  const std::set<int> masks{mask(7, 0, 3, 5), mask(8, 0, 3, 5), mask(7 + (1LL << 40), 0, 3, 5),
                            mask(7, 1, 3, 5), mask(7, 0, 4, 5), mask(7, 0, 3, 6)};
  EXPECT_EQ(masks.size(), 6u);
}

TEST(Problem, ALaunchWithDropoutGetsTheWeightsThatItKeeps) {
  AttentionProblem problem{.heads = 1, .seq_len = 4, .seq_len_kv = 5};
  EXPECT_EQ(launch_args(problem, {}, 0.5f, nullptr).dropout_keep, 256);
  problem.dropout_p = 0.1;
  problem.dropout_seed = 1LL << 40;
  problem.dropout_offset = 0xffffffff;
  const ExtendedArgs args = launch_args(problem, {}, 0.5f, nullptr);
  EXPECT_EQ(args.dropout_keep, 230);
  EXPECT_EQ(args.dropout_seed, 1ULL << 40);
  EXPECT_EQ(args.dropout_offset, 0xffffffffu);
}

TEST(Problem, DecodingIsMeasuredInBytesOfKAndV) {
  // 32 heads share 8 of K and V, each of 4096 keys and values of 256 bytes: 16.8 MB for one batch entry.
  AttentionProblem problem{.batch = 16, .heads = 32, .seq_len = 1, .seq_len_kv = 4096, .kv_heads = 8};
  EXPECT_TRUE(is_decoding(problem));
  const double bytes = 16.0 * 8 * 4096 * 2 * 256;
  const auto tflops_in_a_millisecond = [&] { return floating_point_operations(problem) / 1e-3 * 1e-12; };
  EXPECT_DOUBLE_EQ(kv_gb_per_s(problem, tflops_in_a_millisecond()), bytes / 1e-3 * 1e-9);
  problem.seq_len = 4;  // four times the operations, and the same bytes
  EXPECT_DOUBLE_EQ(kv_gb_per_s(problem, tflops_in_a_millisecond()), bytes / 1e-3 * 1e-9);
  problem.lengths_kv.assign(16, 1024);  // padding does not count
  EXPECT_DOUBLE_EQ(kv_gb_per_s(problem, tflops_in_a_millisecond()), bytes / 4 / 1e-3 * 1e-9);
  problem.fp8_cache = true;
  EXPECT_DOUBLE_EQ(kv_gb_per_s(problem, tflops_in_a_millisecond()), bytes / 8 / 1e-3 * 1e-9);
  problem.lengths_kv.assign(16, 0);
  EXPECT_EQ(kv_gb_per_s(problem, 0), 0);
  problem.seq_len = 17;
  EXPECT_FALSE(is_decoding(problem));
}

TEST(Registration, NumberNameAndTrackAreThoseOfThePath) {
  const Version rung = version_of_file("/somewhere/kernels/of/mine/kernels/06_swizzle.cu");
  EXPECT_EQ(rung.track, Track::ladder);
  EXPECT_EQ(rung.source, "kernels/06_swizzle.cu");
  EXPECT_EQ(label(rung), "06_swizzle");
  EXPECT_EQ(kernel_id(rung), "06");
  EXPECT_EQ(title(rung), "06 · swizzle");
  EXPECT_EQ(code_namespace(rung), "v06");

  const Version hopper = version_of_file("kernels/hopper/17_wgmma.cu");
  EXPECT_EQ(hopper.track, Track::hopper);
  EXPECT_EQ(hopper.source, "kernels/hopper/17_wgmma.cu");
  EXPECT_EQ(label(hopper), "17_wgmma");

  const Version decoding = version_of_file("kernels/decoding/D01_one_query.cu");
  EXPECT_EQ(decoding.track, Track::decoding);
  EXPECT_EQ(decoding.number, 1);
  EXPECT_EQ(label(decoding), "D01_one_query");
  EXPECT_EQ(kernel_id(decoding), "D01");
  EXPECT_EQ(title(decoding), "D01 · one_query");
  EXPECT_EQ(code_namespace(decoding), "vD01");

  const Version backward = version_of_file("kernels/backward/B01_naive.cu");
  EXPECT_EQ(backward.track, Track::backward);
  EXPECT_EQ(backward.kind, ProblemKind::backward);
  EXPECT_EQ(backward.number, 1);
  EXPECT_EQ(label(backward), "B01_naive");
  EXPECT_EQ(kernel_id(backward), "B01");
  EXPECT_EQ(code_namespace(backward), "vB01");
  EXPECT_EQ(version_of_file("kernels/backward/hopper/B09_wgmma.cu").track, Track::backward);
  EXPECT_EQ(version_of_file("kernels/decoding/hopper/D12_early_combine.cu").track, Track::decoding);

  const Version extension = version_of_file("../kernels/extensions/any_length.cu");
  EXPECT_EQ(extension.track, Track::extension);
  EXPECT_EQ(label(extension), "any_length");
  EXPECT_EQ(kernel_id(extension), "any_length");
  EXPECT_EQ(title(extension), "any_length");
  EXPECT_EQ(code_namespace(extension), "any_length");

  const Version of_hopper = version_of_file("kernels/hopper/extensions/multicast.cu");
  EXPECT_EQ(of_hopper.track, Track::extension);
  EXPECT_EQ(of_hopper.source, "kernels/hopper/extensions/multicast.cu");
  EXPECT_EQ(label(of_hopper), "multicast");
  EXPECT_EQ(of_hopper.kind, ProblemKind::forward);

  const Version of_gradients = version_of_file("kernels/backward/extensions/backward_causal.cu");
  EXPECT_EQ(of_gradients.track, Track::extension);
  EXPECT_EQ(of_gradients.kind, ProblemKind::backward);
  EXPECT_EQ(kernel_id(of_gradients), "backward_causal");
  EXPECT_EQ(version_of_file("kernels/backward/hopper/extensions/backward_hopper_causal.cu").kind,
            ProblemKind::backward);
}

TEST(Registration, OtherPathsAreRefusedWithTheFormsThatAreAllowed) {
  for (const char* path :
       {"06_swizzle.cu", "kernels/6_swizzle.cu", "kernels/swizzle.cu", "kernels/06_.cu", "kernels/00_zero.cu",
        "kernels/06_Swizzle.cu", "kernels/06_swizzle.cpp", "kernels/extensions/06_swizzle.cu",
        "kernels/hopper/wgmma.cu", "kernels/hopper/extensions/17_wgmma.cu", "kernels/other/06_swizzle.cu",
        "kernels/decoding/01_one_query.cu", "kernels/D01_one_query.cu", "kernels/decoding/D1_one_query.cu",
        "kernels/backward/01_naive.cu", "kernels/B01_naive.cu", "kernels/decoding/B01_naive.cu",
        "my_kernels/06_swizzle.cu", ""}) {
    SCOPED_TRACE(path);
    try {
      version_of_file(path);
      FAIL();
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(
          error.what(),
          HasSubstr(
              "allowed: kernels/NN_name.cu, kernels/hopper/NN_name.cu, kernels/backward/BNN_name.cu, "
              "kernels/backward/hopper/BNN_name.cu, kernels/decoding/DNN_name.cu, kernels/decoding/hopper/DNN_name.cu, "
              "kernels/extensions/"));
    }
  }
}

// In an order that is unrelated to the expected one.
const Registration registrations[] = {
    Registration({.source = "kernels/extensions/window.cu", .extends = "02", .configurations = {}}),
    Registration({.source = "kernels/hopper/17_wgmma.cu", .architecture = Architecture::sm_90a, .configurations = {}}),
    Registration({.source = "kernels/decoding/D01_one_query.cu", .most_queries = 8, .configurations = {}}),
    Registration({.source = "kernels/02_second.cu", .configurations = {}}),
    Registration(
        {.source = "kernels/extensions/causal.cu", .extends = "02", .solves = {.causal = true}, .configurations = {}}),
};

const BackwardRegistration backward_registration({.source = "kernels/backward/B02_fused.cu",
                                                  .deterministic = false,
                                                  .configurations = {}});

TEST(Registration, VersionsAreInOrderOfNumberAndExtensionsComeLast) {
  std::vector<std::string> labels;
  for (const Version& version : versions()) labels.push_back(label(version));
  EXPECT_THAT(labels, ElementsAre("02_second", "17_wgmma", "B02_fused", "D01_one_query", "causal", "window"));
  EXPECT_EQ(versions()[1].architecture, Architecture::sm_90a);
  EXPECT_FALSE(versions()[2].deterministic);
  EXPECT_EQ(versions()[2].kind, ProblemKind::backward);
  EXPECT_EQ(versions()[3].most_queries, 8);
  EXPECT_TRUE(versions()[3].deterministic);
  EXPECT_EQ(versions()[3].kind, ProblemKind::decoding);
  EXPECT_TRUE(versions()[4].solves.causal);
  EXPECT_EQ(versions()[4].extends, "02");
}

TEST(Registration, ANumberIsGivenOnce) {
  try {
    Registration again({.source = "kernels/hopper/02_other.cu", .configurations = {}});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(
        error.what(),
        "kernels/02_second.cu and kernels/hopper/02_other.cu are both version 02; give one of them another number");
  }
}

// Last, as it changes the list of the tests above.
TEST(Registration, CompletesAVersionThatWasAnnounced) {
  announce(version_of_file("/tree/kernels/03_third.cu"));
  const Version* third = &versions()[1];
  EXPECT_EQ(label(*third), "03_third");
  EXPECT_FALSE(third->is_registered);
  EXPECT_THROW(announce(version_of_file("kernels/03_other.cu")), std::invalid_argument);
  EXPECT_THROW(Registration({.source = "kernels/03_other.cu", .configurations = {}}), std::invalid_argument);
  Registration({.source = "/tree/kernels/03_third.cu", .extends = "02", .configurations = {}});
  EXPECT_EQ(&versions()[1], third);
  EXPECT_TRUE(third->is_registered);
  EXPECT_EQ(third->extends, "02");
}

cudaError_t plain(const AttentionArgs& args, cudaStream_t) {
  return args.batch == 3 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t extended(const ExtendedArgs& args, cudaStream_t) {
  return args.batch == 3 && args.causal ? cudaSuccess : cudaErrorInvalidValue;
}

TEST(Distribution, EveryNameIsKnownAndHasADefinition) {
  std::set<std::string> names, definitions;
  for (int i = 0; i <= static_cast<int>(Distribution::adversarial); ++i) {
    const auto distribution = static_cast<Distribution>(i);
    const std::string name = to_string(distribution);
    EXPECT_EQ(distribution_from_string(name), distribution);
    EXPECT_EQ(json(distribution).get<Distribution>(), distribution);
    EXPECT_THAT(all_distributions(), HasSubstr(name));
    names.insert(name);
    definitions.insert(definition(distribution));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Distribution::adversarial) + 1);
  EXPECT_EQ(definitions.size(), names.size());
  EXPECT_EQ(distribution_from_string("Normal"), std::nullopt);
  EXPECT_THROW(json("steep").get<Distribution>(), std::runtime_error);
}

TEST(Registration, ALaunchTakesWhatItsVersionKnows) {
  ExtendedArgs args;
  args.batch = 3;
  args.causal = true;
  EXPECT_EQ(Launch(plain)(args, nullptr), cudaSuccess);
  EXPECT_EQ(Launch(extended)(args, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace flash_ladder
