// Answers, probabilities and scores of the reference models against what Hugging Face computes
// (tests/golden/generate).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/model_folder.h"

namespace octet::generate {
namespace {

using Tokens = std::vector<std::int32_t>;

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

struct Setting {
  std::int64_t sequences, prefill, score_rows;
};

struct Model {
  Model(const std::string& name, const Setting& setting) {
    const std::string folder = kGolden + "models/" + name;
    DecoderOptions options;
    options.architecture = runtime::read_model(folder);
    options.recipe.compute = DType::f32;
    options.sequences = setting.sequences;
    options.prefill = setting.prefill;
    options.score_rows = setting.score_rows;
    options.capacity = 128;
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(folder);
  }
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

class Golden : public testing::TestWithParam<std::string> {
 protected:
  const Json reference_ = read_json(kGolden + "generate/" + GetParam() + ".json");
  std::string model() const { return reference_["model"]; }
};

void expect_answers(Decoder& decoder, const Json& cases, AnswerOptions options) {
  options.max_new = 40;
  options.logprobs = 4;
  std::vector<Request> requests;
  for (const Json& c : cases) requests.push_back({c["prompt_ids"].get<Tokens>(), requests.size()});
  const std::vector<Answer> answers = decoder.complete(requests, options);
  ASSERT_EQ(answers.size(), cases.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Json& c = cases[i];
    const Answer& answer = answers[i];
    ASSERT_EQ(answer.ids, c["output_ids"].get<Tokens>()) << "prompt " << i;
    EXPECT_EQ(to_string(answer.finish), c["finish_reason"].get<std::string>());
    if (!c.contains("logprobs")) continue;  // the reference has those of its greedy answers at least
    ASSERT_EQ(answer.logprobs.size(), answer.ids.size());
    ASSERT_EQ(answer.top.size(), answer.ids.size());
    for (std::size_t t = 0; t < answer.ids.size(); ++t) {
      EXPECT_NEAR(answer.logprobs[t], c["logprobs"][t].get<double>(), 1e-4) << i << ", " << t;
      ASSERT_EQ(answer.top[t].size(), 4u);
      for (std::size_t k = 0; k < 4; ++k) {
        EXPECT_NEAR(answer.top[t][k].logprob, c["top_logprobs"][t][k][1].get<double>(), 1e-4)
            << i << ", " << t;
      }
    }
  }
}

TEST_P(Golden, AnswersAreThoseOfTransformers) {
  for (const Setting& setting : {Setting{1, 512, 0}, {3, 7, 0}, {64, 64, 0}}) {
    Model m(model(), setting);
    expect_answers(*m.decoder, reference_["greedy"], {});
    const auto stop = reference_["stop_id"].get<std::int32_t>();
    expect_answers(*m.decoder, reference_["greedy_with_stop"], {.stop_ids = {stop}});
    expect_answers(*m.decoder, reference_["greedy_with_repetition_penalty_1_3"],
                   {.sampling = {.repetition_penalty = 1.3}});
  }
}

Sampling settings_of(const Json& settings) {
  Sampling sampling;
  sampling.temperature = settings.value("temperature", 1.0);
  sampling.top_p = settings.value("top_p", 1.0);
  sampling.top_k = settings.value("top_k", std::int64_t{0});
  sampling.min_p = settings.value("min_p", 0.0);
  sampling.repetition_penalty = settings.value("repetition_penalty", 1.0);
  return sampling;
}

TEST_P(Golden, WhatMayBeDrawnIsWhatTransformersLeaves) {
  Model m(model(), {1, 512, 0});
  for (const Json& c : reference_["filters"]) {
    const auto prompt = c["prompt_ids"].get<Tokens>();
    const std::vector<float> logits = m.decoder->next_logits(prompt);
    const auto kept = candidates(logits, settings_of(c["settings"]), prompt);
    Tokens ids;
    for (const Candidate& candidate : kept) ids.push_back(candidate.id);
    ASSERT_EQ(ids, c["kept_ids"].get<Tokens>()) << c["settings"];
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_NEAR(kept[i].probability, c["probabilities"][i].get<double>(), 1e-5) << c["settings"];
    }
  }
}

TEST_P(Golden, ScoresOfTextsAreTheSameInPieces) {
  for (const std::int64_t rows : {128, 7, 1}) {
    Model m(model(), {1, 16, rows});
    for (const Json& c : reference_["scores"]) {
      const auto score = m.decoder->score(c["ids"].get<Tokens>(), 8);
      ASSERT_EQ(score.logprobs.size(), c["logprobs"].size());
      for (std::size_t t = 0; t < score.logprobs.size(); ++t) {
        ASSERT_NEAR(score.logprobs[t], c["logprobs"][t].get<double>(), 1e-4)
            << rows << " at a time, token " << t;
        ASSERT_EQ(score.top[t].size(), 8u);
        for (std::size_t k = 0; k < 8; ++k) {
          ASSERT_NEAR(score.top[t][k].logprob, c["top_logprobs"][t][k].get<double>(), 1e-4);
        }
      }
    }
  }
}

// Pearson's chi-square of 100,000 answers of one token against the reference's probabilities.
TEST(Draws, AreAsFrequentAsTransformersSays) {
  const Json reference = read_json(kGolden + "generate/llama3.json");
  Model m(reference["model"], {1, 512, 0});
  for (const Json& c : reference["filters"]) {
    const auto prompt = c["prompt_ids"].get<Tokens>();
    const std::vector<float> logits = m.decoder->next_logits(prompt);
    const Sampling sampling = settings_of(c["settings"]);
    const auto ids = c["kept_ids"].get<Tokens>();
    constexpr int kDraws = 20'000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<std::size_t>(choose(
          logits, sampling, {.row = static_cast<std::uint64_t>(i), .position = prompt.size()}, prompt))];
    }
    double chi_square = 0, rest_expected = 0;
    int rest = 0, seen = 0, classes = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const double expected = kDraws * c["probabilities"][i].get<double>();
      const int count = counts[static_cast<std::size_t>(ids[i])];
      seen += count;
      if (expected < 10) {
        rest_expected += expected, rest += count;
        continue;
      }
      chi_square += (count - expected) * (count - expected) / expected;
      ++classes;
    }
    EXPECT_EQ(seen, kDraws) << "only what is left is drawn";
    if (rest_expected > 10)
      chi_square += (rest - rest_expected) * (rest - rest_expected) / rest_expected, ++classes;
    const double freedom = std::max(1, classes - 1);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 5) << c["settings"];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Values("gemma2", "gemma3", "llama-linear-rope", "llama3", "mistral",
                                         "qwen2", "qwen3-moe", "qwen3-yarn", "qwen3"),
                         [](const auto& value) {
                           std::string name = value.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace octet::generate
