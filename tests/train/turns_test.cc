// A trainer and a decoder of the same weights in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/comm/threads.h"
#include "octet/generate/decoder.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::train {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kSteps = 50;

model::Architecture architecture() {
  model::Architecture a = model::find_shape("tiny");
  a.layers = 2;
  a.blocks.resize(2);
  return a;
}

Tokens sequence(int length, int salt) {
  Tokens ids;
  for (int i = 0; i < length; ++i) ids.push_back((i * 37 + 11 * salt + i * i) % 1000);
  return ids;
}

runtime::HostBatch batch_of(const std::vector<Tokens>& documents) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const Tokens& ids : documents) runtime::add_document(batch, ids, ids);
  return batch;
}

runtime::InstanceOptions options_of(bool bf16, int stage) {
  config::Config config;
  config.deterministic = "true";
  config.bf16 = bf16;
  config.zero_stage = stage;
  return setup::instance_options(config, architecture(), 64, 64, 3);
}

/// A hash of all that a rank owns, bit for bit.
std::uint64_t state_of(Engine& engine) {
  engine.store().synchronize(engine.compute());
  std::uint64_t hash = 0;
  for (const TensorSlice& s : engine.store().owned_slices()) {
    hash = hash64({static_cast<const char*>(s.data), static_cast<std::size_t>(s.count) * size_of(s.dtype)},
                  hash);
  }
  return hash;
}

void step(Engine& engine, int number, int rank) {
  engine.begin(1);
  engine.micro_batch(batch_of({sequence(17, number + 5 * rank), sequence(30, 3 * number + rank)}));
  engine.finish(1e-2);
}

/// Log-probabilities by the logits of single tokens behind a cache, as complete() makes them.
double first_choice(generate::Decoder& decoder, const Tokens& prompt) {
  return decoder.complete({{prompt, 0}}, {.max_new = 1}).at(0).ids.at(0);
}

class Turns : public testing::TestWithParam<std::tuple<bool, int, int>> {};
INSTANTIATE_TEST_SUITE_P(Of, Turns,
                         testing::Values(std::tuple{false, 1, 0}, std::tuple{true, 1, 0},
                                         std::tuple{false, 2, 0}, std::tuple{true, 2, 2}),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param) ? "bf16" : "fp32") + "_np" +
                                  std::to_string(std::get<1>(p.param)) + "_stage" +
                                  std::to_string(std::get<2>(p.param));
                         });

// After each step the decoder scores and answers. Its log-probabilities are the trainer's to the last bit,
// and the trainer is where it would be without a decoder.
TEST_P(Turns, LogProbabilitiesAreTheTrainersAndItsBitsAreThoseOfARunAlone) {
  const auto [bf16, ranks, stage] = GetParam();
  comm::run_ranks_as_threads({.ranks = ranks}, [&, bf16 = bf16, stage = stage](
                                                   comm::Job& job, comm::Collectives& data, Device& device) {
    const runtime::InstanceOptions options = options_of(bf16, stage);
    Engine alone(device, job, data, options), taking_turns(device, job, data, options);
    alone.initialise(7), taking_turns.initialise(7);
    const std::vector<Tokens> asked{sequence(23, job.rank()), sequence(40, 9), sequence(2, 4)};
    std::vector<std::vector<double>> before;
    generate::Decoder decoder(taking_turns.instance(), {.sequences = 2, .capacity = 48, .scored = 64});
    for (int i = 0; i < kSteps; ++i) {
      step(alone, i, job.rank()), step(taking_turns, i, job.rank());
      const auto scored = decoder.log_probabilities(asked);
      ASSERT_EQ(scored.size(), asked.size());
      for (std::size_t s = 0; s < asked.size(); ++s) {
        ASSERT_EQ(scored[s].size(), asked[s].size() - 1);
        ASSERT_EQ(scored[s], alone.log_probabilities(batch_of({asked[s]}))) << "step " << i;
      }
      ASSERT_NE(scored, before) << "weights as they are after the step";
      before = scored;
      if (i % 10 == 0) first_choice(decoder, asked[1]);
      ASSERT_EQ(state_of(taking_turns), state_of(alone)) << "step " << i;
    }
  });
}

// Scores are those of one forward pass: probabilities, and their sum the loss.
TEST(LogProbabilities, AddUpToTheLossOfAnEvaluation) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(false, 0));
    engine.initialise(3);
    const runtime::HostBatch batch = batch_of({sequence(20, 1), sequence(31, 2)});
    double loss = 0, sum = 0;
    std::int64_t labels = 0;
    engine.evaluate(batch, &loss, &labels);
    const std::vector<double> scores = engine.log_probabilities(batch);
    ASSERT_EQ(static_cast<std::int64_t>(scores.size()), labels);
    for (const double score : scores) {
      EXPECT_LT(score, 0);
      sum -= score;
    }
    EXPECT_NEAR(sum, loss, 1e-5 * loss);
    EXPECT_TRUE(engine.log_probabilities(batch_of({})).empty());
  });
}

// What is drawn from goes by the cache, whose attention sums in another order: the most probable token is the
// same where it is so by a margin.
TEST(LogProbabilities, OfWhatTheDecoderSaysAreThoseOfItsChoice) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(false, 0));
    engine.initialise(3);
    for (int i = 0; i < 5; ++i) step(engine, i, 0);
    generate::Decoder decoder(engine.instance(), {.sequences = 1, .capacity = 48, .scored = 64});
    const Tokens prompt = sequence(20, 1);
    const auto answer = decoder.complete({{prompt, 0}}, {.max_new = 1}).at(0).ids;
    Tokens said = prompt;
    said.push_back(answer.at(0));
    const double best = decoder.log_probabilities({said}).at(0).back();
    for (std::int32_t other = 0; other < engine.options().architecture.vocabulary; other += 7) {
      said.back() = other;
      EXPECT_LE(decoder.log_probabilities({said}).at(0).back(), best + 1e-4) << other;
    }
  });
}

TEST(LogProbabilities, AModelThatCannotBeDecodedFromIsRefused) {
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine cut(device, job, data, options_of(false, 3));
    EXPECT_THROW(generate::Decoder(cut.instance(), {}), Error);
    runtime::InstanceOptions fp8 = options_of(true, 0);
    fp8.store.recipe.kind = precision::RecipeKind::current;
    Engine scaled(device, job, data, fp8);
    EXPECT_THROW(generate::Decoder(scaled.instance(), {}), Error);
    Engine plain(device, job, data, options_of(false, 0));
    plain.initialise(1);
    generate::Decoder decoder(plain.instance(), {.scored = 8});
    EXPECT_THROW(decoder.log_probabilities({sequence(9, 0)}), Error);
    EXPECT_THROW(decoder.log_probabilities({Tokens{}}), Error);
  });
}

}  // namespace
}  // namespace octet::train
