// Experts that are split among ranks: the bits do not depend on the number of ranks that split them.
#include <ostream>

#include "train/expert_parallel.h"

namespace octet::train::expert_bits_test {
namespace {

using namespace expert_parallel_test;

struct Case {
  std::string name;
  How how;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

/// Returns a case at the given stage, with all experts on each rank.
Case at(std::string name, int stage, How how) {
  how.stage = stage;
  how.worker = stage == 3;
  return {std::move(name) + "_stage" + std::to_string(stage), how};
}

/// Expects equal results for all numbers of ranks that can split the experts.
void expect_same_at_every_split(How how) {
  how.split = 1;
  const Result whole = train(how, 0, 2);
  for (int split = 2; split <= std::min(how.ranks, how.experts); split *= 2) {
    SCOPED_TRACE("split " + std::to_string(split));
    how.split = split;
    const Result found = train(how, 0, 2);
    expect_same(found, whole);
    EXPECT_GT(found.exchanged, 0);
  }
}

class SplitBits : public testing::TestWithParam<Case> {};

TEST_P(SplitBits, DoNotDependOnTheSplit) {
  expect_same_at_every_split(GetParam().how);
}

// With one GEMM for each expert, the rows of each expert have a scale. One GEMM for all experts has one
// scale.
TEST(WholeSplitBits, DoNotDependOnTheSplitWithScalesOfEachExpert) {
  ::setenv("OCTETRUN_GROUPED_GEMM", "never", 1);
  expect_same_at_every_split({.stage = 2, .fp8 = "current"});
  ::unsetenv("OCTETRUN_GROUPED_GEMM");
}

std::vector<Case> cases() {
  return {at("fp32_np4", 2, {}), at("delayed_np2", 3, {.ranks = 2, .fp8 = "delayed", .empty = 1}),
          at("lora_np2", 0, {.ranks = 2, .adapters = "lora"})};
}

std::vector<Case> whole_table() {
  std::vector<Case> all;
  for (int stage = 0; stage < 4; ++stage) {
    all.push_back(at("fp32_np2", stage, {.ranks = 2}));
    all.push_back(at("fp32_np4", stage, {}));
    all.push_back(at("strict_np2", stage, {.ranks = 2, .strict = true, .micro = 3}));
    all.push_back(at("strict_np4", stage, {.strict = true, .micro = 3}));
    all.push_back(at("lora_np4", stage, {.adapters = "lora"}));
    all.push_back(at("delayed_np4", stage, {.fp8 = "delayed"}));
  }
  all.push_back(at("fp32_np8", 3, {.ranks = 8, .experts = 8}));
  all.push_back(at("int8_moments", 1, {.moments = "int8"}));
  all.push_back(at("block", 3, {.fp8 = "block"}));
  all.push_back(at("one_expert", 2, {.taken = 1}));
  all.push_back(at("norms", 1, {.recompute = "norms"}));
  all.push_back(at("full", 3, {.recompute = "full", .empty = 2, .capacity = 0.75}));
  all.push_back(at("shared", 2, {.shared = 32}));
  all.push_back(at("biases", 3, {.biases = true}));
  all.push_back(at("frozen_nf4", 3, {.frozen = true, .nf4 = true}));
  for (const char* adapters : {"dora", "dropout", "joined"}) {
    all.push_back(at(adapters, 1, {.adapters = adapters}));
    all.push_back(at(std::string(adapters) + "_full", 3, {.recompute = "full", .adapters = adapters}));
  }
  all.push_back(at("lora_delayed", 2, {.fp8 = "delayed", .adapters = "lora"}));
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Of, SplitBits, testing::ValuesIn(cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Whole, SplitBits, testing::ValuesIn(whole_table()), name_of);

TEST(SplitStrictBits, DoNotDependOnTheNumberOfRanks) {
  const Result alone = train({.ranks = 1, .strict = true, .micro = 4}, 0, 2);
  for (const How& how : {How{.ranks = 2, .split = 2, .stage = 1, .strict = true, .micro = 2},
                         How{.ranks = 4, .split = 2, .stage = 3, .strict = true, .micro = 1}}) {
    SCOPED_TRACE(std::to_string(how.ranks) + " ranks");
    expect_same(train(how, 0, 2), alone);
  }
}

// The sums of other orders differ: the tests above would pass for exact sums.
TEST(SplitSums, DependOnTheSplitIfSumsHaveAnyOrder) {
  const How whole{.ranks = 2, .stage = 2, .deterministic = false};
  How split = whole;
  split.split = 2;
  EXPECT_NE(train(split, 0, 1).gradients, train(whole, 0, 1).gradients);
}

}  // namespace
}  // namespace octet::train::expert_bits_test
