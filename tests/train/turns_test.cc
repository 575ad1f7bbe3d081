// A trainer and a decoder of the same weights in one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/generate/decoder.h"
#include "octet/model/shapes.h"
#include "octet/precision/scaling.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::train::turns_test {
namespace {

using Tokens = std::vector<std::int32_t>;

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

/// Precision of a model in training, and its number of ranks.
struct Run {
  const char* name;
  bool bf16 = false;
  const char* fp8 = "";  ///< the recipe
  int ranks = 1;
  int stage = 0;
  int steps = 12;
};

void PrintTo(const Run& run, std::ostream* out) {
  *out << run.name;
}

runtime::InstanceOptions options_of(const Run& run) {
  config::Config config;
  config.deterministic = "true";
  config.bf16 = run.bf16;
  config.fp8 = run.fp8[0] != '\0';
  if (config.fp8) config.fp8_recipe = run.fp8;
  config.fp8_amax_history_len = 4;
  config.zero_stage = run.stage;
  return setup::instance_options(config, architecture(), 64, 64, 3);
}

/// Returns a hash of all state that a rank owns, including learned scales of activations.
std::uint64_t state_of(Engine& engine) {
  engine.store().synchronize(engine.compute());
  std::uint64_t hash = 0;
  std::vector<TensorSlice> slices = engine.store().owned_slices();
  // Scales of current scaling come from the last cast, which may be in an evaluation.
  const bool learned = engine.core().recipe().kind == precision::RecipeKind::delayed;
  if (const precision::ScaleSet* scales = engine.core().activation_scales(); learned && scales != nullptr) {
    for (TensorSlice& slice : scales->state()) slices.push_back(std::move(slice));
  }
  for (const TensorSlice& s : slices) {
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

/// Returns the token that complete() chooses after a prompt, from single-token logits with a cache.
std::int32_t first_choice(generate::Decoder& decoder, const Tokens& prompt) {
  return decoder.complete({{prompt, 0}}, {.max_new = 1}).at(0).ids.at(0);
}

class Turns : public testing::TestWithParam<Run> {};
std::string run_name(const testing::TestParamInfo<Run>& run) {
  return run.param.name;
}
constexpr Run kRuns[] = {{.name = "fp32"},
                         {.name = "bf16_np2_stage2", .bf16 = true, .ranks = 2, .stage = 2},
                         {.name = "delayed", .bf16 = true, .fp8 = "delayed"},
                         {.name = "block_np2_stage3", .bf16 = true, .fp8 = "block", .ranks = 2, .stage = 3}};
constexpr Run kMoreRuns[] = {
    {.name = "bf16", .bf16 = true},
    {.name = "fp32_np2", .ranks = 2},
    {.name = "current", .fp8 = "current"},
    {.name = "block", .bf16 = true, .fp8 = "block"},
    {.name = "delayed_np2", .bf16 = true, .fp8 = "delayed", .ranks = 2, .stage = 1},
    {.name = "fp32_np3_stage3", .ranks = 3, .stage = 3},
    {.name = "delayed_np2_stage3", .bf16 = true, .fp8 = "delayed", .ranks = 2, .stage = 3}};

/// All runs, with more steps.
std::vector<Run> long_runs() {
  std::vector<Run> runs(std::begin(kRuns), std::end(kRuns));
  runs.insert(runs.end(), std::begin(kMoreRuns), std::end(kMoreRuns));
  for (Run& run : runs) run.steps = 50;
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Of, Turns, testing::ValuesIn(kRuns), run_name);
INSTANTIATE_TEST_SUITE_P(Whole, Turns, testing::ValuesIn(long_runs()), run_name);

// After each step the decoder scores and answers, with different numbers of sequences per rank. Its
// log-probabilities equal the trainer's to the last bit. The trainer's state equals that of a run without a
// decoder.
TEST_P(Turns, LogProbabilitiesAreTheTrainersAndItsBitsAreThoseOfARunAlone) {
  comm::run_ranks_as_threads(
      {.ranks = GetParam().ranks}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
        const runtime::InstanceOptions options = options_of(GetParam());
        Engine alone(device, job, data, options), taking_turns(device, job, data, options);
        alone.initialise(7), taking_turns.initialise(7);
        std::vector<Tokens> asked{sequence(23, job.rank()), sequence(40, 9), sequence(2, 4)};
        const std::size_t most = asked.size();
        asked.resize(most - static_cast<std::size_t>(job.rank()));
        std::vector<std::vector<double>> before;
        generate::Decoder decoder(taking_turns.instance(), {.sequences = 2, .capacity = 48, .scored = 64});
        for (int i = 0; i < GetParam().steps; ++i) {
          step(alone, i, job.rank()), step(taking_turns, i, job.rank());
          const auto scored = decoder.log_probabilities(asked);
          ASSERT_EQ(scored.size(), asked.size());
          for (std::size_t s = 0; s < most; ++s) {
            if (s >= asked.size()) {
              alone.log_probabilities(batch_of({}));  // other ranks still score
              continue;
            }
            ASSERT_EQ(scored[s].size(), asked[s].size() - 1);
            ASSERT_EQ(scored[s], alone.log_probabilities(batch_of({asked[s]}))) << "step " << i;
          }
          ASSERT_NE(scored, before) << "weights as they are after the step";
          before = scored;
          if (i % 10 == 0) first_choice(decoder, sequence(40, 9));
          ASSERT_EQ(state_of(taking_turns), state_of(alone)) << "step " << i;
        }
      });
}

// The same prompt after every step: no state of earlier weights is used.
TEST(Turns, AnAnswerKnowsNothingOfEarlierWeights) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    const runtime::InstanceOptions options = options_of({.name = "fp32"});
    Engine alone(device, job, data, options), taking_turns(device, job, data, options);
    alone.initialise(7), taking_turns.initialise(7);
    generate::Decoder often(taking_turns.instance(), {.sequences = 2, .capacity = 48, .scored = 64});
    generate::Decoder once(alone.instance(), {.sequences = 2, .capacity = 48, .scored = 64});
    const auto ask = [](generate::Decoder& decoder) {
      return decoder.complete({{sequence(24, 9), 0}}, {.max_new = 8, .logprobs = 0}).at(0).logprobs;
    };
    for (int i = 0; i < 5; ++i) {
      step(alone, i, 0), step(taking_turns, i, 0);
      if (i < 4) ask(often);
    }
    EXPECT_EQ(ask(often), ask(once));
  });
}

// At stage 3, a rank with many requests and a rank without requests make their passes together. Answers equal
// the answers of a decoder with the whole model on every rank.
TEST(Turns, AnswersAtStage3AreThoseOfWeightsThatEveryRankHolds) {
  for (const char* recipe : {"", "delayed"}) {
    comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
      Engine whole(device, job, data, options_of({.name = "whole", .bf16 = true, .fp8 = recipe, .ranks = 2}));
      Engine cut(device, job, data,
                 options_of({.name = "cut", .bf16 = true, .fp8 = recipe, .ranks = 2, .stage = 3}));
      whole.initialise(3), cut.initialise(3);
      for (int i = 0; i < 3; ++i) step(whole, i, job.rank()), step(cut, i, job.rank());
      const generate::DecoderOptions options{.sequences = 1, .capacity = 48, .prefill = 16};
      generate::Decoder of_whole(whole.instance(), options), of_cut(cut.instance(), options);
      std::vector<generate::Request> requests;
      if (job.rank() == 1) requests = {{sequence(30, 1), 0}, {sequence(5, 2), 1}};
      const generate::AnswerOptions drawn{.sampling = {.temperature = 1.0}, .max_new = 7};
      const auto said = of_cut.complete(requests, drawn), expected = of_whole.complete(requests, drawn);
      ASSERT_EQ(said.size(), requests.size());
      for (std::size_t i = 0; i < said.size(); ++i) {
        ASSERT_EQ(said[i].ids, expected[i].ids);
        ASSERT_EQ(said[i].ids.size(), 7u);
      }
      // A request that one rank cannot answer is an error on all, and no rank blocks.
      if (job.rank() == 1) requests[1].prompt.clear();
      ASSERT_THROW(of_cut.complete(requests, drawn), Error);
      ASSERT_THROW(of_cut.log_probabilities({Tokens(job.rank() == 1 ? 99 : 1, 5)}), Error);
    });
  }
}

// Scores come from one forward pass. They are log-probabilities, and their sum gives the loss.
TEST(LogProbabilities, AddUpToTheLossOfAnEvaluation) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of({"fp32"}));
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

// Sampling uses the cache, where attention sums in another order. The most probable token is the same if it
// leads by a margin.
TEST(LogProbabilities, OfWhatTheDecoderSaysAreThoseOfItsChoice) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of({"fp32"}));
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

TEST(LogProbabilities, OfAnEmptyOrTooLongSequenceAreRefused) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine plain(device, job, data, options_of({"fp32"}));
    plain.initialise(1);
    generate::Decoder decoder(plain.instance(), {.scored = 8});
    EXPECT_THROW(decoder.log_probabilities({sequence(9, 0)}), Error);
    EXPECT_THROW(decoder.log_probabilities({Tokens{}}), Error);
  });
}

}  // namespace
}  // namespace octet::train::turns_test
