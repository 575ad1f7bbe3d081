// A decoder for a model in training with deterministic: strict. Log-probabilities of sampled tokens have the
// bits that the trainer computes in packed micro-batches, at every stage and world size. Tokens and
// log-probabilities of a row are equal for all of these.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/generate/decoder.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::train::strict_sampling_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kMicroBatches = 4;  ///< of a step, on all ranks together
constexpr std::int64_t kTokens = 256, kLength = 192;
constexpr std::size_t kRows = 8;

struct Way {
  const char* name;
  bool bf16 = false;
  const char* fp8 = "";
};

runtime::InstanceOptions options_of(const Way& way, int ranks, int stage) {
  config::Config config;
  config.deterministic = "strict";
  config.bf16 = way.bf16;
  config.fp8 = way.fp8[0] != '\0';
  if (config.fp8) config.fp8_recipe = way.fp8;
  config.zero_stage = stage;
  model::Architecture architecture = model::find_shape("tiny");
  architecture.layers = 2;
  architecture.blocks.resize(2);
  runtime::InstanceOptions options = setup::instance_options(config, architecture, kTokens, kLength, 8);
  options.max_micro_batches = kMicroBatches / ranks;
  return options;
}

Tokens sequence(std::size_t length, std::size_t salt) {
  Tokens ids;
  for (std::size_t i = 0; i < length; ++i)
    ids.push_back(static_cast<std::int32_t>((i * 37 + 11 * salt + i * i * (salt + 3)) % 4096));
  return ids;
}

runtime::HostBatch batch_of(const std::vector<Tokens>& documents) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const Tokens& ids : documents) runtime::add_document(batch, ids, ids);
  return batch;
}

void step(Engine& engine, int number, int rank, int ranks) {
  const int own = kMicroBatches / ranks;
  engine.begin(own);
  for (int i = 0; i < own; ++i) {
    const auto salt = static_cast<std::size_t>(7 * number + rank * own + i);
    engine.micro_batch(batch_of({sequence(90, salt), sequence(70, salt + 50)}));
  }
  engine.finish(1e-2);
}

/// Scores whole sequences, packed in varying combinations.
std::vector<std::vector<double>> trained(Engine& engine, const std::vector<Tokens>& sequences) {
  std::vector<std::vector<double>> all;
  while (engine.job().all_max(all.size() < sequences.size() ? 1 : 0) == 1) {
    std::vector<Tokens> documents;
    std::size_t tokens = 0;
    if (all.size() % 3 == 2 && all.size() < sequences.size()) {  // a preceding neighbour
      documents.push_back(sequence(5 + all.size(), 3));
      tokens = documents.back().size();
    }
    const std::size_t before = documents.size();
    while (all.size() + documents.size() - before < sequences.size()) {
      const Tokens& next = sequences[all.size() + documents.size() - before];
      if (tokens + next.size() > static_cast<std::size_t>(kTokens)) break;
      documents.push_back(next);
      tokens += next.size();
    }
    const std::vector<double> scores = engine.log_probabilities(batch_of(documents));
    auto at = scores.begin();
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const auto end = at + std::ssize(documents[d]) - 1;
      if (d >= before) all.emplace_back(at, end);
      at = end;
    }
  }
  return all;
}

/// Tokens and log-probabilities of all rows.
struct Told {
  std::vector<Tokens> ids = std::vector<Tokens>(kRows);
  std::vector<std::vector<double>> logprobs = std::vector<std::vector<double>>(kRows);
};

Told told(const Way& way, int ranks, int stage) {
  Told told;
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(way, ranks, stage));
    engine.initialise(7);
    generate::Decoder decoder(engine.instance(), {.page_tokens = stage % 2 == 0 ? 16 : 64,
                                                  .share_prefixes = stage != 2,
                                                  .sequences = 1 + ranks % 3 + stage,
                                                  .capacity = kLength,
                                                  .prefill = 13 + 40 * stage,
                                                  .scored = kLength});
    ASSERT_TRUE(decoder.options().strict) << "as the model in training";
    for (int number = 0; number < 2; ++number) step(engine, number, job.rank(), ranks);
    std::vector<generate::Request> requests;
    for (std::size_t row = static_cast<std::size_t>(job.rank()); row < kRows;
         row += static_cast<std::size_t>(ranks)) {
      Tokens prompt = sequence(3 + 17 * row, row / 2);  // two share a prefix
      requests.push_back({std::move(prompt), row});
    }
    const auto answers =
        decoder.complete(requests, {.sampling = {.temperature = 1.0}, .max_new = 40, .logprobs = 0});
    std::vector<Tokens> whole;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      whole.push_back(requests[i].prompt);
      whole.back().insert(whole.back().end(), answers[i].ids.begin(), answers[i].ids.end());
    }
    const auto scores = trained(engine, whole);
    const auto alone = decoder.log_probabilities(whole);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(answers[i].ids.size(), 40u);
      const std::vector<double> of_answer(scores[i].end() - 40, scores[i].end());
      EXPECT_EQ(answers[i].logprobs, of_answer) << way.name << ", row " << requests[i].row << ", " << ranks;
      EXPECT_EQ(alone[i], scores[i]);
      told.ids[requests[i].row] = answers[i].ids;
      told.logprobs[requests[i].row] = answers[i].logprobs;
    }
  });
  return told;
}

class StrictSampling : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(In, StrictSampling,
                         testing::Values(Way{"fp32"}, Way{"bf16", true}, Way{"block", true, "block"}),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(StrictSampling, HasTheBitsOfTrainingAtEveryStageAndNumberOfRanks) {
  const Told one = told(GetParam(), 1, 0);
  for (const auto& [ranks, stage] : {std::pair{1, 3}, {2, 0}, {2, 1}, {4, 2}, {4, 3}}) {
    const Told other = told(GetParam(), ranks, stage);
    EXPECT_EQ(other.ids, one.ids) << ranks << " ranks, stage " << stage;
    EXPECT_EQ(other.logprobs, one.logprobs) << ranks << " ranks, stage " << stage;
  }
}

// Training allows fp8_recipe: current with strict, but sampled tokens would depend on their neighbours.
TEST(StrictAnswersBesideTraining, OfCurrentScalingAreRefused) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of({"current", true, "current"}, 1, 0));
    try {
      generate::Decoder(engine.instance(), {.capacity = 32});
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("fp8_recipe: current"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace octet::train::strict_sampling_test
