// Strict answers: log-probabilities of sampled tokens have the bits of training.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/model/shapes.h"
#include "strict_runs.h"

namespace octet::generate::strict_test {
namespace {

using precision::RecipeKind;

/// Precision of a model.
struct Way {
  const char* name;
  DType compute = DType::f32;
  RecipeKind kind = RecipeKind::none;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

constexpr Way kWays[] = {{"fp32"}, {"bf16", DType::bf16}, {"block", DType::bf16, RecipeKind::block}};

constexpr std::int64_t kCapacity = 192;

DecoderOptions options_of(const std::string& model, const Way& way) {
  DecoderOptions options;
  options.architecture = model == "tiny"
                             ? model::find_shape("tiny")
                             : model::read_architecture(OCTET_SOURCE_DIR "/tests/golden/models/" + model);
  options.recipe.compute = way.compute;
  options.recipe.kind = way.kind;
  if (way.kind == RecipeKind::block) options.recipe.gradient_format = DType::e4m3;
  options.strict = true;
  options.capacity = kCapacity;
  options.scored = kCapacity;
  return options;
}

/// A process with this many threads.
struct Place {
  explicit Place(int threads = 2) : device(make_cpu_device({.threads = threads})) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder(const std::string& model, const DecoderOptions& options) {
    auto made = std::make_unique<Decoder>(*device, *job, *data, options);
    if (model == "tiny") {
      made->initialise(5);
    } else {
      made->load_weights(OCTET_SOURCE_DIR "/tests/golden/models/" + model);
    }
    return made;
  }
};

/// Draws at least `tokens` tokens with varying batches.
Compared sampled(const std::string& model, const DecoderOptions& base, std::int64_t tokens,
                 std::uint64_t seed) {
  Place here;
  const auto scorer = here.decoder(model, base);
  Drawn drawn(seed);
  Compared all;
  while (all.tokens < tokens) {
    const DecoderOptions ways = drawn_ways(drawn, base);
    const auto decoder = here.decoder(model, ways);
    const std::vector<Request> requests =
        drawn_requests(drawn, 4 + drawn(20), 120, base.architecture.vocabulary);
    const AnswerOptions asked{
        .sampling = {.temperature = 1.0, .seed = seed}, .max_new = 1 + drawn(70), .logprobs = 0};
    const auto answers = decoder->complete(requests, asked);
    all.add(compare(requests, answers,
                    [&](const Tokens& whole) { return scorer->log_probabilities({whole}).at(0); }));
  }
  return all;
}

class Strict : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(In, Strict, testing::ValuesIn(kWays),
                         [](const auto& p) { return std::string(p.param.name); });

/// Expects that tokens drawn from a model have the log-probabilities of training.
void expect_same_bits(const std::string& model, const Way& way, std::int64_t tokens) {
  const Compared all = sampled(model, options_of(model, way), tokens, 3);
  EXPECT_EQ(all.different, 0) << model << ": " << all.different << " of " << all.tokens << ", by up to "
                              << all.largest;
}

TEST_P(Strict, SampledTokensHaveTheLogProbabilitiesOfTraining) {
  for (const char* model : {"tiny", "gemma3"}) expect_same_bits(model, GetParam(), 250);
  if (GetParam().kind != RecipeKind::block) expect_same_bits("qwen3-moe", GetParam(), 150);
}

class StrictModels : public Strict {};
INSTANTIATE_TEST_SUITE_P(Whole, StrictModels, testing::ValuesIn(kWays),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(StrictModels, SampledTokensHaveTheLogProbabilitiesOfTraining) {
  for (const char* model : {"qwen3", "qwen2", "gemma2", "mistral", "llama3"})
    expect_same_bits(model, GetParam(), 250);
}

// OCTETRUN_STRICT_TOKENS tokens for each precision.
TEST_P(Strict, ManyTokens) {
  const char* told = std::getenv("OCTETRUN_STRICT_TOKENS");
  const Compared all =
      sampled("tiny", options_of("tiny", GetParam()), told != nullptr ? std::atoll(told) : 1000, 17);
  std::printf("%s: %lld tokens sampled, %lld with other bits, largest difference %g\n", GetParam().name,
              static_cast<long long>(all.tokens), static_cast<long long>(all.different), all.largest);
  EXPECT_EQ(all.different, 0);
}

/// Answers to requests, with one configuration.
std::vector<Answer> answers(const std::string& model, const DecoderOptions& options,
                            const std::vector<Request>& requests, const AnswerOptions& asked,
                            int threads = 2) {
  Place here(threads);
  return here.decoder(model, options)->complete(requests, asked);
}

// Tokens and log-probabilities, also of the most probable tokens, with any neighbours and any number of
// threads. Greedy answers too, although they are chosen elsewhere.
TEST_P(Strict, AnswersHaveTheSameBitsInEveryBatchAndPiece) {
  Drawn drawn(8);
  const DecoderOptions base = options_of("tiny", GetParam());
  const std::vector<Request> requests = drawn_requests(drawn, 6, 100, base.architecture.vocabulary);
  for (const double temperature : {0.0, 1.0}) {
    for (const std::int64_t logprobs : {0, 3}) {
      const AnswerOptions asked{
          .sampling = {.temperature = temperature}, .max_new = 20, .logprobs = logprobs};
      DecoderOptions alone = base;
      alone.sequences = 1;
      const std::vector<Answer> expected = answers("tiny", alone, requests, asked, 1);
      for (const int threads : {1, 3}) {
        const std::vector<Answer> got = answers("tiny", drawn_ways(drawn, base), requests, asked, threads);
        for (std::size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(got[i].ids, expected[i].ids) << i;
          EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << i;
          ASSERT_EQ(got[i].top.size(), expected[i].top.size());
          for (std::size_t t = 0; t < got[i].top.size(); ++t) {
            for (std::size_t k = 0; k < got[i].top[t].size(); ++k)
              EXPECT_EQ(got[i].top[t][k].logprob, expected[i].top[t][k].logprob);
          }
        }
      }
    }
  }
}

// Scores through the cache, in pieces of any length, have the bits of scores without it.
TEST_P(Strict, ScoresAreThoseOfTraining) {
  Drawn drawn(4);
  for (const std::int64_t rows : {5, 64}) {
    DecoderOptions options = options_of("tiny", GetParam());
    options.score_rows = rows;
    Place here;
    const auto decoder = here.decoder("tiny", options);
    for (const Request& text : drawn_requests(drawn, 4, 150, options.architecture.vocabulary)) {
      EXPECT_EQ(decoder->score(text.prompt, 2).logprobs, decoder->log_probabilities({text.prompt}).at(0))
          << rows;
    }
  }
}

/// Returns the error of constructing a decoder, with its exit code.
std::string refusal(const DecoderOptions& options, Device& device, comm::Job& job, comm::Collectives& data) {
  try {
    const Decoder decoder(device, job, data, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(StrictAnswers, AreRefusedWhereNeighboursOrOtherRoundingsWouldCount) {
  Place here;
  const auto said = [&](const DecoderOptions& options) {
    return refusal(options, *here.device, *here.job, *here.data);
  };
  const Way ways[] = {{"delayed", DType::bf16, RecipeKind::delayed},
                      {"current", DType::bf16, RecipeKind::current},
                      {"whole rows", DType::bf16, RecipeKind::rows}};
  for (const Way& way : ways) {
    EXPECT_NE(said(options_of("tiny", way)).find(way.name), std::string::npos) << way.name;
    DecoderOptions free = options_of("tiny", way);
    free.strict = false;
    if (way.kind != RecipeKind::delayed) {
      EXPECT_EQ(said(free), "") << way.name;
    }
  }
  DecoderOptions cache = options_of("tiny", kWays[1]);
  cache.fp8_cache = true;
  EXPECT_NE(said(cache).find("cache in FP8"), std::string::npos);
  // GPU libraries choose FP8 kernels by the number of tokens.
  const std::unique_ptr<Device> gpu = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto data = here.job->collectives(comm::Mesh(1).group("data", 0), *gpu, comm::Carrier::automatic);
  EXPECT_NE(refusal(options_of("tiny", kWays[2]), *gpu, *here.job, *data).find("GPU"), std::string::npos);
  EXPECT_EQ(refusal(options_of("tiny", kWays[1]), *gpu, *here.job, *data), "");
}

}  // namespace
}  // namespace octet::generate::strict_test
