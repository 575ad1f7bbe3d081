// Answers, candidates and scores of Hugging Face's transformers (tests/golden/generate), and comparisons of a
// decoder with them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

using Tokens = std::vector<std::int32_t>;

inline const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

inline Json golden_reference(const std::string& name) {
  return read_json(kGolden + "generate/" + name + ".json");
}

/// The reference models with answers.
inline std::vector<std::string> golden_models() {
  return {"gemma2",
          "gemma3",
          "llama-linear-rope",
          "llama3",
          "mistral",
          "qwen2",
          "qwen3-moe",
          "qwen3-yarn",
          "qwen3",
          "olmoe",
          "glm4-moe-groups",
          "gpt-oss",
          "seed-oss",
          "gemma1",
          "granite-bias",
          "smollm3-windows",
          "olmo2",
          "olmo3",
          "exaone4",
          "hunyuan",
          "phi3",
          "ministral3",
          "glm4",
          "ernie4-5",
          "starcoder2",
          "cohere2",
          "apertus",
          "qwen3-vl",
          "qwen3-next",
          "qwen3-5-text-tied",
          "qwen3-5-moe",
          "deepseek-v3",
          "deepseek-v3-groups",
          "deepseek-v2",
          "glm4-moe-lite",
          "gemma4",
          "gemma4-values"};
}

/// Returns the name as a part of a test's name.
inline std::string test_name(std::string model) {
  std::ranges::replace(model, '-', '_');
  return model;
}

inline void expect_answers(Decoder& decoder, const Json& cases, AnswerOptions options) {
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
    if (!c.contains("logprobs")) continue;  // the reference has them at least for its greedy answers
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

/// Compares greedy answers: plain, with a stop id and with a penalty.
inline void expect_all_answers(Decoder& decoder, const Json& reference) {
  expect_answers(decoder, reference["greedy"], {});
  const auto stop = reference["stop_id"].get<std::int32_t>();
  expect_answers(decoder, reference["greedy_with_stop"], {.stop_ids = {stop}});
  expect_answers(decoder, reference["greedy_with_repetition_penalty_1_3"],
                 {.sampling = {.repetition_penalty = 1.3}});
}

inline Sampling settings_of(const Json& settings) {
  Sampling sampling;
  sampling.temperature = settings.value("temperature", 1.0);
  sampling.top_p = settings.value("top_p", 1.0);
  sampling.top_k = settings.value("top_k", std::int64_t{0});
  sampling.min_p = settings.value("min_p", 0.0);
  sampling.repetition_penalty = settings.value("repetition_penalty", 1.0);
  return sampling;
}

inline void expect_filters(Decoder& decoder, const Json& reference) {
  for (const Json& c : reference["filters"]) {
    const auto prompt = c["prompt_ids"].get<Tokens>();
    const std::vector<float> logits = decoder.next_logits(prompt);
    const auto kept = candidates(logits, settings_of(c["settings"]), prompt);
    Tokens ids;
    for (const Candidate& candidate : kept) ids.push_back(candidate.id);
    ASSERT_EQ(ids, c["kept_ids"].get<Tokens>()) << c["settings"];
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_NEAR(kept[i].probability, c["probabilities"][i].get<double>(), 1e-5) << c["settings"];
    }
  }
}

inline void expect_scores(Decoder& decoder, const Json& reference) {
  for (const Json& c : reference["scores"]) {
    const auto score = decoder.score(c["ids"].get<Tokens>(), 8);
    ASSERT_EQ(score.logprobs.size(), c["logprobs"].size());
    for (std::size_t t = 0; t < score.logprobs.size(); ++t) {
      ASSERT_NEAR(score.logprobs[t], c["logprobs"][t].get<double>(), 1e-4)
          << decoder.options().score_rows << " at a time, token " << t;
      ASSERT_EQ(score.top[t].size(), 8u);
      for (std::size_t k = 0; k < 8; ++k) {
        ASSERT_NEAR(score.top[t][k].logprob, c["top_logprobs"][t][k].get<double>(), 1e-4);
      }
    }
  }
}

}  // namespace octet::generate
