// Amax histories of delayed scaling. Amaxes of activations and gradients are added once per micro-batch,
// amaxes of weights once per optimizer step.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "store/synthetic.h"

namespace octet::store::amax_history_test {
namespace {

using namespace synthetic;

constexpr int kLength = 12;

Scenario scenario(int stage, int micro_batches) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe = {
      .kind = precision::RecipeKind::delayed, .compute = DType::bf16, .history_length = kLength};
  s.micro_batches = micro_batches;
  s.steps = 2;
  return s;
}

/// Returns the filled rows of column `i` of a history [length, count], oldest first.
std::vector<float> entries(const std::vector<float>& history, std::size_t count, std::size_t i) {
  std::vector<float> filled;
  for (std::size_t row = 0; row < history.size() / count; ++row) {
    if (history[row * count + i] != 0) filled.push_back(history[row * count + i]);
  }
  return filled;
}

TEST(AmaxHistory, ActivationsAndGradientsEnterOnceForEachMicroBatch) {
  for (const int ranks : {1, 3}) {
    for (const int stage : {0, 3}) {
      const Scenario s = scenario(stage, 3);
      State found;
      on_threads({.ranks = ranks}, s, [&](Rank& rank) {
        rank.initialise();
        rank.steps(0, s.steps);
        rank.store().synchronize(rank.compute());
        if (rank.number() == 0) found = rank.activation_scales();
      });
      const std::vector<float>& history = found.at("activations/amax_history");
      ASSERT_EQ(history.size(), 2u * kLength);
      for (int i = 0; i < 2; ++i) {
        // The expected value is the maximum over the ranks in a micro-batch.
        std::vector<float> expected;
        for (int step = 0; step < s.steps; ++step) {
          for (int m = 0; m < s.micro_batches; ++m) {
            float most = 0;
            for (int rank = 0; rank < ranks; ++rank) {
              most = std::max(most, 1.0f + noise(seed_of("amax", step, m * ranks + rank), i));
            }
            expected.push_back(most);
          }
        }
        EXPECT_EQ(entries(history, 2, static_cast<std::size_t>(i)), expected)
            << ranks << " ranks, stage " << stage;
        EXPECT_EQ(found.at("activations/scale")[static_cast<std::size_t>(i)],
                  (i == 0 ? 448.0f : 57344.0f) / *std::ranges::max_element(expected));
      }
    }
  }
}

TEST(AmaxHistory, WeightsEnterOnceAtTheStartAndOnceForEachStep) {
  for (const int ranks : {1, 3}) {
    for (const int stage : {0, 1, 3}) {
      Scenario s = scenario(stage, 3);
      std::vector<float> expected;  // amaxes of one weight, at the start and after each step
      Outcome last;
      for (int steps = 0; steps <= 2; ++steps) {
        s.steps = steps;
        last = run({.ranks = ranks}, s);
        float most = 0;
        for (const float w : last.state.at("layers.2.down.weight")) most = std::max(most, std::abs(w));
        expected.push_back(most);
      }
      // Each block has one scale for q, k and v together, and one for the down GEMM.
      const auto count = last.state.at("fp8_weights/scale").size();
      ASSERT_EQ(count, 10u);
      const std::vector<float>& history = last.state.at("fp8_weights/amax_history");
      ASSERT_EQ(history.size(), kLength * count);
      EXPECT_EQ(entries(history, count, 5), expected) << ranks << " ranks, stage " << stage;
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(entries(history, count, i).size(), 3u) << "scale " << i << ", stage " << stage;
      }
      EXPECT_EQ(last.state.at("fp8_weights/scale")[5], 448.0f / *std::ranges::max_element(expected));
    }
  }
}

TEST(AmaxHistory, PartsOfAFusedWeightHaveTheirOwn) {
  const char* const parts[] = {"q", "k", "v"};
  for (const int ranks : {1, 2}) {
    for (const int stage : {0, 3}) {
      Scenario s = scenario(stage, 2);
      s.options.recipe.scale_parts = true;
      std::vector<std::vector<float>> expected(3);
      Outcome last;
      for (int steps = 0; steps <= 2; ++steps) {
        s.steps = steps;
        last = run({.ranks = ranks}, s);
        for (std::size_t part = 0; part < 3; ++part) {
          float most = 0;
          for (const float w : last.state.at("layers.2." + std::string(parts[part]) + ".weight")) {
            most = std::max(most, std::abs(w));
          }
          expected[part].push_back(most);
        }
      }
      const auto count = last.state.at("fp8_weights/scale").size();
      ASSERT_EQ(count, 20u) << "q, k, v and the down product of five blocks";
      for (std::size_t part = 0; part < 3; ++part) {
        EXPECT_EQ(entries(last.state.at("fp8_weights/amax_history"), count, 8 + part), expected[part])
            << parts[part] << ", " << ranks << " ranks, stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace octet::store::amax_history_test
