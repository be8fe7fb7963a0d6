// Diagnoses of wrong gradients, with deliberately wrong kernels that run on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/diagnosis/gradient_mistakes.h"
#include "worker/diagnosis/gradient_probes.h"
#include "worker/diagnosis/gradient_steps.h"
#include "worker/diagnosis/gradient_verdict.h"

namespace flash_ladder {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Tiling kTiling{.block_q = 16, .block_kv = 16, .step_kv = 16, .num_warps = 1};
const AttentionProblem kProblem{.batch = 1, .heads = 2, .seq_len = 64, .seq_len_kv = 48, .head_dim = 32};

GradientMistake known_gradient(const std::string& name, const AttentionProblem& problem = kProblem) {
  for (GradientMistake& mistake : known_gradient_mistakes(problem, kTiling.block_q, kTiling.block_kv))
    if (mistake.name == name) return mistake;
  ADD_FAILURE() << "there is no mistake " << name;
  return {};
}

// dQ, dK and dV as a kernel with this mistake computes them.
struct HostGradients {
  GradientMistake mistake = {};

  std::vector<HostBuffer> run(const Inputs& inputs) const {
    std::vector<HostBuffer> outputs;
    for (std::size_t which = 0; which < 3; ++which) {
      const AttentionProblem of = problem_of_gradient(inputs.problem, which);
      HostBuffer output(output_size(of));
      for (std::int64_t batch = 0; batch < of.batch; ++batch)
        for (std::int64_t head = 0; head < of.heads; ++head)
          for (std::int64_t row = 0; row < num_rows(of, batch); ++row) {
            const auto values = gradient_row_with(mistake.concerns[which] ? mistake : GradientMistake{}, inputs, which,
                                                  batch, head, row);
            for (std::int64_t d = 0; d < of.head_dim; ++d)
              output.data()[output_layout(of).row(batch, head, row) + d] =
                  element_from_float(of.dtype, static_cast<float>(values[d]));
          }
      outputs.push_back(std::move(output));
    }
    return outputs;
  }

  GradientReport debug(const ShownRow& shown = {}) const {
    return debug_gradients(kProblem, Distribution::normal, 5, kTiling, shown, [this](const Inputs& inputs) {
      return ExaminedGradients{.outputs = run(inputs), .findings = {}};
    });
  }
};

Inputs inputs_of(const AttentionProblem& problem) {
  Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, 5);
  inputs.gradients = make_gradient_inputs(inputs, Packing::separate, OutputGradient::normal, 5);
  return inputs;
}

// Problems with masks and shared heads, and with each of the fields that gradients may have.
std::vector<AttentionProblem> problems_of_all_fields() {
  std::vector<AttentionProblem> problems{kProblem};
  const auto add = [&](auto change) {
    AttentionProblem problem = kProblem;
    change(problem);
    problems.push_back(problem);
  };
  add([](AttentionProblem& problem) { problem.kv_heads = 1, problem.causal = true; });
  add([](AttentionProblem& problem) { problem.softcap = 0.5; });
  add([](AttentionProblem& problem) { problem.softcap = 2, problem.alibi = problem.sinks = true; });
  add([](AttentionProblem& problem) { problem.batch = 2, problem.dropout_p = 0.5, problem.dropout_seed = 3; });
  add([](AttentionProblem& problem) { problem.head_dim_v = 24; });
  for (const bool packed : {false, true})
    add([=](AttentionProblem& problem) {
      problem.batch = 3;
      problem.lengths = {20, 64, 3};
      problem.lengths_kv = {30, 48, 0};
      problem.packed = packed;
      problem.causal = problem.alibi = true;
    });
  return problems;
}

TEST(GradientMistakes, NoMistakeIsTheReference) {
  for (const AttentionProblem& problem : problems_of_all_fields()) {
    SCOPED_TRACE(describe(problem));
    const Inputs inputs = inputs_of(problem);
    const auto references = make_gradient_references(inputs, 1, 0);
    for (std::size_t which = 0; which < 3; ++which)
      for (const std::int64_t row : {0, 17, 47}) {
        const std::int64_t batch = problem.batch == 1 ? 0 : 1;
        const auto values = gradient_row_with({}, inputs, which, batch, 0, row);
        for (std::size_t d = 0; d < values.size(); ++d)
          ASSERT_NEAR(values[d], references[which].row(batch, 0, row)[d], 1e-9) << kGradientNames[which] << row;
      }
  }
}

std::vector<std::string> names_of_mistakes_that_explain(const GradientMistake& mistake, const Inputs& inputs,
                                                        const std::array<Reference, 3>& references) {
  std::vector<std::string> names;
  const auto outputs = HostGradients{mistake}.run(inputs);
  for (const GradientMistake& one :
       gradient_mistakes_that_explain(inputs, references, outputs, kTiling.block_q, kTiling.block_kv))
    names.push_back(one.name);
  return names;
}

TEST(GradientMistakes, EachIsRecognised) {
  const Inputs inputs = inputs_of(kProblem);
  const auto references = make_gradient_references(inputs, 1, 0);
  const auto all = known_gradient_mistakes(kProblem, kTiling.block_q, kTiling.block_kv);
  EXPECT_GT(all.size(), 30u);
  for (const GradientMistake& mistake : all) {
    const auto names = names_of_mistakes_that_explain(mistake, inputs, references);
    EXPECT_THAT(names, Contains(mistake.name));
    EXPECT_LE(names.size(), 2u) << testing::PrintToString(names);
  }
  EXPECT_THAT(names_of_mistakes_that_explain({}, inputs, references), IsEmpty());
}

TEST(GradientMistakes, EachOfAFieldIsRecognised) {
  std::set<std::string> of_plain, recognised;
  for (const GradientMistake& mistake : known_gradient_mistakes(kProblem, kTiling.block_q, kTiling.block_kv))
    of_plain.insert(mistake.name);
  for (const AttentionProblem& problem : problems_of_all_fields()) {
    SCOPED_TRACE(describe(problem));
    const Inputs inputs = inputs_of(problem);
    const auto references = make_gradient_references(inputs, 1, 0);
    for (const GradientMistake& mistake : known_gradient_mistakes(problem, kTiling.block_q, kTiling.block_kv)) {
      if (of_plain.contains(mistake.name)) continue;
      const auto names = names_of_mistakes_that_explain(mistake, inputs, references);
      if (names.empty()) continue;  // here it makes no difference
      EXPECT_THAT(names, Contains(mistake.name));
      EXPECT_LE(names.size(), 3u) << testing::PrintToString(names);
      recognised.insert(mistake.name);
    }
    EXPECT_THAT(names_of_mistakes_that_explain({}, inputs, references), IsEmpty());
  }
  for (const char* name : {"softcap_left_out",
                           "softcap_derivative_left_out",
                           "softcap_derivative_not_squared",
                           "softcap_derivative_of_capped",
                           "softcap_derivative_not_divided",
                           "softcap_derivative_after_alibi",
                           "alibi_left_out",
                           "alibi_added",
                           "alibi_not_aligned",
                           "alibi_aligned_by_sizes",
                           "alibi_of_first_head",
                           "dropout_left_out",
                           "dropout_not_in_dP",
                           "dropout_not_in_dV",
                           "dropout_not_scaled",
                           "dropout_not_scaled_in_dP",
                           "dropout_not_scaled_in_dV",
                           "dropout_of_dS",
                           "dropout_of_P_and_dP",
                           "mask_of_head",
                           "mask_transposed",
                           "D_without_dropout",
                           "aligned_by_sizes",
                           "keys_of_padding",
                           "queries_of_padding",
                           "lengths_of_first_entry",
                           "lengths_of_entry_before"})
    EXPECT_TRUE(recognised.contains(name)) << name;
}

TEST(GradientProbes, ShowEveryMatrixOfARightKernel) {
  AttentionProblem problem = kProblem;
  problem.kv_heads = 1;
  const Inputs inputs = inputs_of(problem);
  const GradientTile tile{.first_query = 16, .queries = 16, .first_key = 32, .keys = 16, .head = 1};
  for (const GradientProbe& probe : gradient_probes()) {
    const Inputs probed = inputs_of_probe(probe, inputs, tile);
    GradientOutcome outcome{.references = make_gradient_references(probed, 1, 0),
                            .outputs = HostGradients{}.run(probed)};
    const SeenMatrix seen = see_matrix(probe, probed, outcome, tile);
    EXPECT_EQ(seen.values.compared, 16 * 16);
    EXPECT_EQ(seen.values.wrong, 0) << seen.matrix << " in " << seen.through;
    if (probe.matrix == GradientProbe::Matrix::dP) {
      // dP does not depend on Q and K, so that it is the one of the inputs as they are.
      double dP = 0;
      const std::uint16_t* dO = inputs.gradients->dO.data() + inputs.gradients->dO_layout.row(0, 1, 18);
      for (std::int64_t d = 0; d < 32; ++d)
        dP +=
            double{element_to_float(problem.dtype, dO[d])} * element_to_float(problem.dtype, inputs.V_row(0, 1, 35)[d]);
      const ProbedElement element = element_of_probe(probe, probed, outcome, tile, 0, 1, 18, 35);
      EXPECT_NEAR(element.expected, dP, 1e-5);
      EXPECT_NEAR(element.got, dP, element.bound);
    }
  }
}

TEST(GradientReport, OfARightKernelIsALesson) {
  const GradientReport seen = HostGradients{}.debug({.head = 1, .row = 20});
  EXPECT_TRUE(seen.right());
  EXPECT_EQ(seen.first_wrong(), nullptr);
  EXPECT_THAT(seen.cuts, SizeIs(4u + 3u));
  EXPECT_THAT(seen.also_right, ElementsAre("ramp", "large-logit", "offset-mean"));
  EXPECT_EQ(seen.head, 1);
  EXPECT_EQ(seen.query, 20);
  EXPECT_EQ(seen.query_tile, 1);
  EXPECT_THAT(seen.matrices, SizeIs(7u + 3u));
  ASSERT_THAT(seen.keys, SizeIs(16u));
  for (const QueryAndKey& pair : seen.keys) {
    EXPECT_NEAR(pair.P, pair.P_expected, 1e-3);
    EXPECT_NEAR(pair.S, pair.S_expected, 1e-2);
    EXPECT_NEAR(pair.dP, pair.dP_expected, 2e-2);
    EXPECT_NEAR(pair.dS, pair.dS_expected, 1e-3);
  }
  EXPECT_FALSE(seen.first_step);
  EXPECT_FALSE(seen.diagnosis);
}

TEST(GradientReport, NamesTheFirstWrongStep) {
  const struct {
    const char *mistake, *step;
  } cases[] = {{"scale_left_out", "S"}, {"L_left_out", "P"},     {"log2e_left_out", "P"},
               {"D_left_out", "dS"},    {"dP_takes_K", "dP"},    {"dV_takes_dS", "dV"},
               {"dK_takes_P", "dK"},    {"dQ_not_scaled", "dQ"}, {"D_of_first_tile", "dS"}};
  for (const auto& [name, step] : cases) {
    const GradientReport seen = HostGradients{known_gradient(name)}.debug();
    EXPECT_FALSE(seen.right()) << name;
    EXPECT_EQ(seen.first_step, step) << name;
    ASSERT_TRUE(seen.diagnosis) << name;
    EXPECT_THAT(seen.diagnosis->suggests, Contains(name));
  }
}

TEST(GradientReport, NamesTheFirstWrongTile) {
  const GradientReport queries = HostGradients{known_gradient("query_tile_before")}.debug();
  ASSERT_NE(queries.first_wrong(), nullptr);
  EXPECT_EQ(queries.first_wrong()->of, "queries");
  EXPECT_EQ(queries.first_wrong()->tiles, 2);
  EXPECT_EQ(queries.query_tile, 1) << "that tile is shown";
  EXPECT_THAT(queries.diagnosis->sentences,
              Contains(HasSubstr("right with 1 tile of queries, wrong with 2 (dV and dK)")));
  const GradientReport keys = HostGradients{known_gradient("dQ_half_of_tiles")}.debug();
  ASSERT_NE(keys.first_wrong(), nullptr);
  EXPECT_EQ(keys.first_wrong()->of, "keys");
}

TEST(GradientReport, AFaultEndsTheLookAndAFindingIsWrong) {
  int launches = 0;
  const auto faults = [&](const Inputs& inputs) {
    ++launches;
    ExaminedGradients examined;
    if (inputs.problem.seq_len <= 16) examined.outputs = HostGradients{}.run(inputs);
    return examined;
  };
  const GradientReport faulted = debug_gradients(kProblem, Distribution::normal, 5, kTiling, {}, faults);
  ASSERT_THAT(faulted.cuts, SizeIs(2u));
  EXPECT_TRUE(faulted.cuts[0].right());
  EXPECT_TRUE(faulted.first_wrong()->faulted);
  EXPECT_EQ(launches, 2) << "a GPU's context is lost";
  EXPECT_THAT(faulted.matrices, IsEmpty());
  const auto finds = [&](const Inputs& inputs) {
    Finding race;
    race.kind = "race";
    return ExaminedGradients{.outputs = HostGradients{}.run(inputs), .findings = {race}};
  };
  const GradientReport found = debug_gradients(kProblem, Distribution::normal, 5, kTiling, {}, finds);
  EXPECT_FALSE(found.right());
  EXPECT_EQ(found.first_wrong()->wrong(), 0);
  EXPECT_THAT(found.findings, SizeIs(1u));
}

TEST(GradientReport, RoundTripsThroughJson) {
  const nlohmann::json json = HostGradients{known_gradient("D_left_out")}.debug();
  EXPECT_EQ(nlohmann::json(json.get<GradientReport>()), json);
  EXPECT_THROW(nlohmann::json::parse("{}").get<GradientReport>(), std::exception);
}

Diagnosis diagnose_host(const HostGradients& kernel, const AttentionProblem& problem,
                        const std::function<ExaminedGradients(const Inputs&)>& examine) {
  const Inputs inputs = inputs_of(problem);
  const auto references = make_gradient_references(inputs, 1, 0);
  const auto outputs = kernel.run(inputs);
  return diagnose_gradients({inputs, Distribution::normal, references, outputs},
                            {{.name = "normal inputs", .right = false}, {.name = "a single tile", .right = true}},
                            kTiling, examine);
}

TEST(DiagnosisOfGradients, NamesTheMistakeTheStepAndTheSets) {
  const HostGradients kernel{known_gradient("D_left_out")};
  const Diagnosis diagnosis = diagnose_host(kernel, kProblem, [&](const Inputs& inputs) {
    return ExaminedGradients{.outputs = kernel.run(inputs), .findings = {}};
  });
  EXPECT_THAT(diagnosis.suggests, ElementsAre("D_left_out"));
  ASSERT_GE(diagnosis.sentences.size(), 2u);
  EXPECT_THAT(diagnosis.sentences[0], HasSubstr("D is not subtracted from dP"));
  EXPECT_THAT(diagnosis.sentences[1], HasSubstr("P and dP are right, but dS is wrong"));
  EXPECT_THAT(diagnosis.sentences, Contains("Right: a single tile. Wrong: normal inputs."));
  EXPECT_THAT(diagnosis.experiments, SizeIs(7u));
}

// Problems that cannot be cut off are not launched again, but their mistakes have names.
TEST(DiagnosisOfGradients, NeedsNoLaunchesToNameTheMistake) {
  AttentionProblem problem = kProblem;
  problem.batch = 2;
  problem.lengths = {20, 64};
  problem.lengths_kv = {48, 30};
  problem.packed = true;
  problem.softcap = 0.5;
  const HostGradients kernel{known_gradient("softcap_derivative_left_out", problem)};
  const Diagnosis diagnosis = diagnose_host(kernel, problem, {});
  EXPECT_THAT(diagnosis.suggests, ElementsAre("softcap_derivative_left_out"));
  ASSERT_THAT(diagnosis.sentences, SizeIs(4u));
  EXPECT_THAT(diagnosis.sentences[0], HasSubstr("dS lacks the derivative of the softcap, 1 - tanh²"));
  EXPECT_THAT(diagnosis.sentences[1], HasSubstr("dK: Wrong in "));
  EXPECT_THAT(diagnosis.sentences[2], HasSubstr("dQ: Wrong in "));
  EXPECT_THAT(diagnosis.experiments, IsEmpty());
}

TEST(DiagnosisOfGradients, ASmallerProblemMayBeRight) {
  AttentionProblem problem = kProblem;
  problem.seq_len = 16 * 16;
  const HostGradients wrong{known_gradient("D_left_out")}, right;
  const Diagnosis diagnosis = diagnose_host(wrong, problem, [&](const Inputs& inputs) {
    return ExaminedGradients{.outputs = right.run(inputs), .findings = {}};
  });
  EXPECT_THAT(diagnosis.sentences, Contains(HasSubstr("depends on the sizes of the problem")));
}

TEST(DiagnosisOfGradients, OfARightLaunchIsARace) {
  const HostGradients right;
  const Diagnosis diagnosis = diagnose_host(right, kProblem, [&](const Inputs& inputs) {
    return ExaminedGradients{.outputs = right.run(inputs), .findings = {}};
  });
  EXPECT_THAT(diagnosis.sentences, ElementsAre(HasSubstr("the output changes from launch to launch")));
  EXPECT_THAT(diagnosis.suggests, IsEmpty());
}

}  // namespace
}  // namespace flash_ladder
