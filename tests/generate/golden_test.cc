// Answers, probabilities and scores of the reference models, compared with Hugging Face
// (tests/golden/generate).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "generate/golden.h"
#include "octet/base/json.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/model_folder.h"

namespace octet::generate::golden_test {
namespace {

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
  const Json reference_ = golden_reference(GetParam());
  std::string model() const { return reference_["model"]; }
};

TEST_P(Golden, AnswersAreThoseOfTransformers) {
  for (const Setting& setting : {Setting{1, 512, 0}, {3, 7, 0}, {64, 64, 0}}) {
    Model m(model(), setting);
    expect_all_answers(*m.decoder, reference_);
  }
}

TEST_P(Golden, WhatMayBeDrawnIsWhatTransformersLeaves) {
  Model m(model(), {1, 512, 0});
  expect_filters(*m.decoder, reference_);
}

TEST_P(Golden, ScoresOfTextsAreTheSameInPieces) {
  for (const std::int64_t rows : {128, 7, 1}) {
    Model m(model(), {1, 16, rows});
    expect_scores(*m.decoder, reference_);
  }
}

// Pearson's chi-square of 100,000 single-token answers against the reference's probabilities.
TEST(Draws, AreAsFrequentAsTransformersSays) {
  const Json reference = golden_reference("llama3");
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

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(golden_models()),
                         [](const auto& value) { return test_name(value.param); });

}  // namespace
}  // namespace octet::generate::golden_test
