// Answers with weights, keys and values in E4M3: close to bf16, and independent of other sequences in the
// batch like other formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "generate/golden.h"
#include "generate/rows_alone.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/generate/decoder.h"
#include "octet/generate/decoder_bench.h"
#include "octet/model/shapes.h"
#include "octet/runtime/model_folder.h"

namespace octet::generate::fp8_test {
namespace {

struct Numbers {
  bool weights = false, cache = false;
  DType compute = DType::bf16;
};

DecoderOptions options_of(const std::string& name, const Numbers& numbers, std::int64_t sequences = 3) {
  DecoderOptions options;
  options.architecture = runtime::read_model(kGolden + "models/" + name);
  options.recipe.compute = numbers.compute;
  if (numbers.weights) options.recipe.kind = precision::RecipeKind::rows;
  options.fp8_cache = numbers.cache;
  options.sequences = sequences;
  options.capacity = 128;
  options.prefill = 64;
  return options;
}

struct Model {
  explicit Model(const DecoderOptions& options)
      : decoder(std::make_unique<Decoder>(*device, *job, *data, options)) {}
  Model(const std::string& name, const DecoderOptions& options) : Model(options) {
    decoder->load_weights(kGolden + "models/" + name);
  }
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

/// Log-probabilities of all tokens at each position of the reference's texts.
std::vector<std::vector<double>> distributions(Decoder& decoder, const std::string& name) {
  const Json reference = read_json(kGolden + "generate/" + name + ".json");
  const auto vocabulary = static_cast<std::size_t>(decoder.options().architecture.vocabulary);
  std::vector<std::vector<double>> all;
  for (const Json& text : reference["scores"]) {
    const auto score = decoder.score(text["ids"].get<Tokens>(), static_cast<std::int64_t>(vocabulary));
    for (const auto& place : score.top) {
      auto& row = all.emplace_back(vocabulary);
      for (const TokenScore& token : place) row[static_cast<std::size_t>(token.id)] = token.logprob;
    }
  }
  return all;
}

struct Distance {
  double kl = 0;  ///< mean over positions
  double same_best =
      0;  ///< share of clear positions with the same best token; clear: the best token leads by 0.5
  double clear = 0;  ///< share of clear positions
};

Distance distance(const std::vector<std::vector<double>>& want, const std::vector<std::vector<double>>& got) {
  Distance d;
  for (std::size_t i = 0; i < want.size(); ++i) {
    for (std::size_t t = 0; t < want[i].size(); ++t) d.kl += std::exp(want[i][t]) * (want[i][t] - got[i][t]);
    const auto best = std::ranges::max_element(want[i]);
    const bool clear = std::ranges::count_if(want[i], [&](double x) { return x > *best - 0.5; }) == 1;
    const bool same = std::ranges::max_element(got[i]) - got[i].begin() == best - want[i].begin();
    d.clear += clear ? 1 : 0;
    d.same_best += clear && same ? 1 : 0;
  }
  const auto places = static_cast<double>(want.size());
  return {.kl = d.kl / places, .same_best = d.same_best / d.clear, .clear = d.clear / places};
}

class Fp8Answers : public testing::TestWithParam<std::string> {
 protected:
  std::vector<std::vector<double>> distributions_with(const Numbers& numbers) const {
    DecoderOptions options = options_of(GetParam(), numbers);
    options.score_rows = 16;
    Model m(GetParam(), options);
    return distributions(*m.decoder, GetParam());
  }
};

// The golden models have random weights. No token is much more probable than others, and rounding errors are
// as large as in a trained model.
TEST_P(Fp8Answers, HaveTheDistributionsOfBf16) {
  const auto want = distributions_with({});
  for (const Numbers& numbers :
       {Numbers{.weights = true}, {.cache = true}, {.weights = true, .cache = true}}) {
    const Distance d = distance(want, distributions_with(numbers));
    const std::string name = std::string(numbers.weights ? "weights " : "") + (numbers.cache ? "cache" : "");
    RecordProperty(name, std::to_string(d.kl) + " " + std::to_string(d.same_best));
    EXPECT_GT(d.clear, 0.2) << name;
    EXPECT_GT(d.kl, 1e-7) << name << ": nothing was rounded";
    EXPECT_LE(d.kl, numbers.weights ? 0.02 : 0.005) << name;
    EXPECT_GE(d.same_best, 0.97) << name << " of " << d.clear;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fp8Answers, testing::Values("llama3", "qwen3", "gemma3"),
                         [](const auto& i) { return i.param; });

std::vector<Request> requests() {
  std::vector<Request> all;
  for (std::size_t i = 0; i < 7; ++i) {
    Tokens prompt;
    for (std::size_t t = 0; t < 1 + 5 * i % 13; ++t)
      prompt.push_back(static_cast<std::int32_t>((7 * i + 3 * t) % 50));
    all.push_back({prompt, 100 + i});
  }
  return all;
}

TEST(Fp8Decoder, NeighboursAndPiecesOfThePromptDoNotChangeAnAnswer) {
  const Sampling lively{.temperature = 3.0, .seed = 11};
  for (const DType compute : {DType::f32, DType::bf16}) {
    const Numbers numbers{.weights = true, .cache = true, .compute = compute};
    std::vector<Answer> expected;
    Model alone("qwen3", options_of("qwen3", numbers, 1));
    for (const Request& request : requests()) {
      expected.push_back(
          alone.decoder->complete({request}, {.sampling = lively, .max_new = 9, .logprobs = 0}).at(0));
    }
    for (const auto& [sequences, prefill] : {std::pair{3, 64}, {2, 4}, {7, 7}}) {
      DecoderOptions options = options_of("qwen3", numbers, sequences);
      options.prefill = prefill;
      Model together("qwen3", options);
      const auto answers =
          together.decoder->complete(requests(), {.sampling = lively, .max_new = 9, .logprobs = 0});
      for (std::size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(answers[i].ids, expected[i].ids) << sequences << ", " << prefill << ": " << i;
        expect_logprobs(
            answers[i].logprobs, expected[i].logprobs, rows_are_alone(*together.device), compute, true,
            std::to_string(sequences) + ", " + std::to_string(prefill) + ": " + std::to_string(i));
      }
    }
  }
}

// A copied prefix includes the scales.
TEST(Fp8Decoder, PromptsThatBeginAlikeShareTheirBeginningInE4m3) {
  Tokens prefix;
  for (std::int32_t t = 0; t < 40; ++t) prefix.push_back((5 * t * t + 3 * t) % 50);
  std::vector<Request> behind;
  for (std::size_t i = 0; i < 5; ++i) {
    Tokens prompt = prefix;
    prompt.push_back(static_cast<std::int32_t>(i));
    behind.push_back({prompt, i});
  }
  const Numbers numbers{.cache = true};
  Model alone("qwen3", options_of("qwen3", numbers, 1)), together("qwen3", options_of("qwen3", numbers, 5));
  const AnswerOptions wanted{.max_new = 9, .logprobs = 0};
  const auto answers = together.decoder->complete(behind, wanted);
  EXPECT_GT(together.decoder->counts().shared_tokens, 4 * 39);
  for (std::size_t i = 0; i < behind.size(); ++i) {
    Model fresh("qwen3", options_of("qwen3", numbers, 1));
    const Answer want = fresh.decoder->complete({behind[i]}, wanted).at(0);
    EXPECT_EQ(answers[i].ids, want.ids);
    expect_logprobs(answers[i].logprobs, want.logprobs, rows_are_alone(*fresh.device), DType::f32, true,
                    std::to_string(i));
  }
}

/// Distance of logits with weights in E4M3 from logits in fp32, for fresh weights of two seeds.
double far_from_fp32(DecoderOptions options, std::uint64_t seed, std::uint64_t fp8_seed) {
  const Tokens prompt{5, 17, 3, 44, 9, 21, 30};
  options.recipe = {.compute = DType::f32};
  const auto logits = [&](std::uint64_t of) {
    Model m(options);
    m.decoder->initialise(of);
    return m.decoder->next_logits(prompt);
  };
  const auto want = logits(seed);
  options.recipe.kind = precision::RecipeKind::rows;
  const auto got = logits(fp8_seed);
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

// Weights made on the device are the rounded values of a decoder in fp32.
TEST(Fp8Decoder, FreshWeightsAreThoseOfOtherFormats) {
  const DecoderOptions options = options_of("qwen3", {});
  EXPECT_LT(far_from_fp32(options, 7, 7), 0.15);
  EXPECT_GT(far_from_fp32(options, 7, 7), 1e-4);
  EXPECT_GT(far_from_fp32(options, 7, 8), 0.5) << "another seed";
  // A matrix with more elements than one step of the initialisation.
  DecoderOptions wide = options;
  wide.architecture.layers = 1;
  wide.architecture.intermediate = (1 << 24) / wide.architecture.hidden / 2 + 1000;
  EXPECT_LT(far_from_fp32(wide, 7, 7), 0.15);
}

std::size_t bytes_of(const Decoder& decoder, const std::string& prefix) {
  std::size_t bytes = 0;
  for (const Reservation& r : decoder.arena().reservations()) {
    if (r.kind == MemoryKind::device && r.name.starts_with(prefix)) bytes += r.bytes;
  }
  return bytes;
}

// Embedding and head have 1,050,673,152 of the 8,030,261,248 parameters, in bf16.
TEST(Fp8Decoder, AWeightIsAByteAndSoAreAKeyAndAValue) {
  const std::unique_ptr<Device> dry = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *dry, comm::Carrier::automatic);
  DecoderOptions options;
  options.architecture = model::find_shape("llama-3.1-8b");
  options.recipe = {.kind = precision::RecipeKind::rows, .compute = DType::bf16};
  options.sequences = 2;
  options.capacity = 1000;
  for (const bool cache : {false, true}) {
    options.fp8_cache = cache;
    const Decoder decoder(*dry, *job, *data, options);
    const double plain = 2 * 1'050'673'152.0, blocks = 8'030'261'248.0 - 1'050'673'152.0;
    EXPECT_NEAR(static_cast<double>(bytes_of(decoder, "parameters/")), plain + blocks, 0.002 * blocks);
    // 32 layers, keys and values, 2 x 16 pages of 64 tokens, 8 heads of 128 and a scale.
    const double heads = 32.0 * 2 * 2 * 16 * 64 * 8;
    EXPECT_EQ(static_cast<double>(bytes_of(decoder, "KV cache")), heads * (cache ? 132 : 256));
  }
}

TEST(Fp8Decoder, ABenchCountsTheBytesThatLie) {
  const BenchOptions plain{.sequences = 2, .context = 20, .steps = 2, .warmup = 1};
  BenchOptions narrow = plain;
  narrow.fp8_cache = true;
  const model::Architecture a = runtime::read_model(kGolden + "models/qwen3");
  const precision::Recipe bf16{.compute = DType::bf16},
      fp8{.kind = precision::RecipeKind::rows, .compute = DType::bf16};
  const auto measured = [&](const BenchOptions& options, const precision::Recipe& recipe) {
    Model m(bench_decoder(options, a, recipe));
    m.decoder->initialise(1);
    return bench(*m.decoder, options);
  };
  const BenchResult wide = measured(plain, bf16), some = measured(plain, fp8), all = measured(narrow, fp8);
  EXPECT_LT(some.weight_bytes, 0.8 * wide.weight_bytes);
  EXPECT_EQ(all.weight_bytes, some.weight_bytes);
  EXPECT_EQ(some.cache_bytes, wide.cache_bytes);
  const double head = static_cast<double>(a.heads.head_dim);
  EXPECT_NEAR(all.cache_bytes / wide.cache_bytes, (head + 4) / (2 * head), 1e-9);
}

}  // namespace
}  // namespace octet::generate::fp8_test
