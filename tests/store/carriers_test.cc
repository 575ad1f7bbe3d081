// The store with collectives that consist of exchanges and kernels, as on GPUs. Every carrier gives the same
// bits as messages, at every stage, with overlap or without.
#include "store/synthetic.h"

namespace octet::store::carriers_test {
namespace {

using namespace synthetic;
using comm::Carrier;
using comm::Wire;

std::string name_of(Carrier carrier) {
  return carrier == Carrier::peer ? "peer" : "host";
}

Scenario scenario(int stage, bool overlap, precision::RecipeKind kind) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.deterministic = true;
  s.options.recipe.kind = kind;
  s.options.recipe.compute = kind == precision::RecipeKind::none ? DType::f32 : DType::bf16;
  s.options.recipe.history_length = 4;
  s.options.adamw.weight_decay = 0.1;
  return s;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  ASSERT_EQ(a.results.size(), b.results.size());
  for (std::size_t i = 0; i < a.results.size(); ++i) {
    EXPECT_EQ(a.results[i].grad_norm, b.results[i].grad_norm) << what;
    EXPECT_EQ(a.results[i].loss_sum, b.results[i].loss_sum) << what;
  }
  EXPECT_EQ(a.copies, b.copies) << what;
  EXPECT_EQ(a.scales, b.scales) << what;
}

class Carriers : public testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(Composed, Carriers, testing::Values(Carrier::peer, Carrier::host),
                         [](const auto& test) { return name_of(test.param); });

void expect_bits_of_messages(Carrier carrier, int ranks, precision::RecipeKind kind) {
  const Outcome messages = run({.ranks = ranks}, scenario(0, false, kind));
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool overlap : {false, true}) {
      expect_same(
          messages,
          run({.ranks = ranks, .compute_worker = true, .carrier = carrier}, scenario(stage, overlap, kind)),
          std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + (overlap ? ", overlap" : ""));
    }
  }
}

TEST_P(Carriers, EveryStageGivesTheBitsOfMessagesWithOverlapOrWithout) {
  expect_bits_of_messages(GetParam(), 2, precision::RecipeKind::none);
  expect_bits_of_messages(GetParam(), 3, precision::RecipeKind::delayed);
}

class OtherCarriers : public Carriers {};
INSTANTIATE_TEST_SUITE_P(Whole, OtherCarriers, testing::Values(Carrier::peer, Carrier::host),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(OtherCarriers, OtherNumbersOfRanksGiveTheBitsOfMessages) {
  expect_bits_of_messages(GetParam(), 3, precision::RecipeKind::none);
  expect_bits_of_messages(GetParam(), 2, precision::RecipeKind::delayed);
}

TEST_P(Carriers, StrictSumsAreThoseOfMessages) {
  for (const int stage : {0, 1, 3}) {
    Scenario s = scenario(stage, true, precision::RecipeKind::none);
    s.options.strict = true;
    const Outcome alone = run({.ranks = 2}, s);
    expect_same(alone, run({.ranks = 2, .compute_worker = true, .carrier = GetParam()}, s),
                "stage " + std::to_string(stage));
  }
}

TEST_P(Carriers, WithErrorFeedbackANarrowWireLosesTheSame) {
  for (const int stage : {0, 1, 3}) {
    Scenario s = scenario(stage, true, precision::RecipeKind::none);
    s.options.wire = Wire::int8;
    s.options.error_feedback = true;
    expect_same(run({.ranks = 3}, s), run({.ranks = 3, .compute_worker = true, .carrier = GetParam()}, s),
                "stage " + std::to_string(stage));
  }
}

TEST_P(Carriers, ByNodesTheSumsAreThoseOfMessages) {
  const std::vector<int> nodes{0, 0, 1, 1};
  for (const Wire wire : {Wire::f32, Wire::int8}) {
    for (const int stage : {0, 3}) {
      Scenario s = scenario(stage, true, precision::RecipeKind::delayed);
      s.options.wire = wire;
      s.options.hierarchical = Hierarchical::on;
      expect_same(run({.ranks = 4, .node_of = nodes}, s),
                  run({.ranks = 4, .compute_worker = true, .node_of = nodes, .carrier = GetParam()}, s),
                  "stage " + std::to_string(stage) + ", wire " + std::to_string(static_cast<int>(wire)));
    }
  }
}

}  // namespace
}  // namespace octet::store::carriers_test
