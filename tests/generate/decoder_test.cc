// Answers of a whole model: where they end, and that neither neighbours nor the size of pieces change them.
#include "octet/generate/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/model/build.h"
#include "octet/model/shapes.h"

namespace octet::generate {
namespace {

using Tokens = std::vector<std::int32_t>;

/// A small model of the golden ones.
struct Model {
  explicit Model(std::int64_t sequences = 3, std::int64_t capacity = 64, std::int64_t prefill = 512) {
    const std::string folder = OCTET_SOURCE_DIR "/tests/golden/models/qwen3";
    DecoderOptions options;
    options.architecture = model::read_architecture(folder);
    options.recipe.compute = DType::f32;
    options.sequences = sequences;
    options.capacity = capacity;
    options.prefill = prefill;
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(folder);
  }
  Tokens answer(const Tokens& prompt, const Tokens& stops, std::int64_t max_new,
                const Sampling& sampling = {}) {
    return decoder->complete({{prompt, 0}}, stops, max_new, sampling).at(0);
  }
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

const Tokens kPrompt{5, 17, 3, 44, 9, 21, 30};
/// Answers of many different tokens.
const Sampling kLively{.temperature = 3.0, .seed = 11};

/// The first place of a token of `stops` in what would be said without them.
Tokens cut_at(const Tokens& whole, const Tokens& stops) {
  const auto end = std::ranges::find_first_of(whole, stops);
  return {whole.begin(), end};
}

TEST(Decoder, AnyOfTheStopTokensEndsAnAnswerAndIsNoPartOfIt) {
  Model m;
  const Tokens whole = m.answer(kPrompt, {}, 12, kLively);
  ASSERT_EQ(whole.size(), 12u);
  const std::int32_t unused = 1 + *std::ranges::max_element(whole);
  for (const std::size_t place : {0, 3, 7, 11}) {
    for (const Tokens& stops : {Tokens{whole[place]},
                                {unused, whole[place]},
                                {unused, unused + 1, whole[place]},
                                {whole[place], unused},
                                {whole[11], whole[place]}}) {
      EXPECT_EQ(m.answer(kPrompt, stops, 12, kLively), cut_at(whole, stops)) << "place " << place;
    }
  }
  EXPECT_EQ(m.answer(kPrompt, {unused, unused + 1}, 12, kLively), whole);
}

TEST(Decoder, AnAnswerEndsAtItsLimitOrWhereTheCacheIsFull) {
  Model m(3, 16);
  EXPECT_EQ(m.answer(kPrompt, {}, 1).size(), 1u);
  EXPECT_EQ(m.answer(kPrompt, {}, 5).size(), 5u);
  EXPECT_EQ(m.answer(kPrompt, {}, 100).size(), 16 - kPrompt.size());
  EXPECT_THROW(m.answer({}, {}, 5), Error);
  EXPECT_THROW(m.answer(Tokens(16, 1), {}, 5), Error);
  EXPECT_EQ(m.answer(Tokens(15, 1), {}, 5).size(), 1u);
  EXPECT_THROW(m.answer({1, -1}, {}, 5), Error);
  EXPECT_THROW(m.answer({1, 1 << 30}, {}, 5), Error);
}

TEST(Decoder, TemperatureAndSeedReachTheChoice) {
  Model m;
  const Tokens greedy = m.answer(kPrompt, {}, 20), lively = m.answer(kPrompt, {}, 20, kLively);
  EXPECT_EQ(m.answer(kPrompt, {}, 20, {.temperature = 0, .seed = 5}), greedy);
  EXPECT_NE(lively, greedy);
  EXPECT_NE(m.answer(kPrompt, {}, 20, {.temperature = 3.0, .seed = 12}), lively);
  EXPECT_NE(m.answer(kPrompt, {}, 20, {.temperature = 0.2, .seed = 11}), lively);
  EXPECT_EQ(m.answer(kPrompt, {}, 20, {.temperature = 3.0, .top_k = 1, .seed = 11}), greedy);
}

/// Bytes of weights that a decoder reserves, for each parameter of its model.
double weight_bytes(const Decoder& decoder, const model::Architecture& architecture) {
  std::size_t bytes = 0;
  for (const Reservation& r : decoder.arena().reservations()) {
    if (r.name.starts_with("parameters/") || r.name.starts_with("gradients")) bytes += r.bytes;
  }
  return static_cast<double>(bytes) /
         static_cast<double>(model::build_layout(architecture).parameter_count());
}

TEST(Decoder, WeightsLieOnceInTheDtypeThatIsComputedWith) {
  const std::unique_ptr<Device> dry = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *dry, comm::Carrier::automatic);
  DecoderOptions options;
  options.architecture = model::find_shape("llama-3.1-8b");
  for (const auto& [compute, expected] : {std::pair{DType::bf16, 2.0}, {DType::f32, 4.0}}) {
    options.recipe.compute = compute;
    const Decoder decoder(*dry, *job, *data, options);
    EXPECT_NEAR(weight_bytes(decoder, options.architecture), expected, 0.001);
  }
  // Small tensors of the golden model end before the next multiple of 256 bytes.
  const Model m;
  EXPECT_NEAR(
      weight_bytes(*m.decoder, model::read_architecture(OCTET_SOURCE_DIR "/tests/golden/models/qwen3")), 4.0,
      0.2);
}

TEST(Decoder, NeighboursAndPiecesOfThePromptDoNotChangeAnAnswer) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 7; ++i) {
    Tokens prompt;
    for (std::size_t t = 0; t < 1 + 5 * i % 13; ++t)
      prompt.push_back(static_cast<std::int32_t>((7 * i + 3 * t) % 50));
    requests.push_back({prompt, 100 + i});
  }
  for (const Sampling& sampling : {Sampling{}, kLively}) {
    Model alone(1);
    std::vector<Tokens> expected;
    for (const Request& request : requests) {
      expected.push_back(alone.decoder->complete({request}, {}, 9, sampling).at(0));
    }
    for (const auto& [sequences, prefill] : {std::pair{3, 512}, {2, 4}, {7, 7}, {16, 16}}) {
      Model together(sequences, 64, prefill);
      std::vector<Tokens> told(requests.size());
      const auto answers = together.decoder->complete(
          requests, {}, 9, sampling,
          [&](std::size_t request, std::int32_t token) { told.at(request).push_back(token); });
      EXPECT_EQ(answers, expected) << sequences << " side by side, " << prefill << " tokens at a time";
      EXPECT_EQ(told, expected) << "what is said while it is made";
    }
  }
}

}  // namespace
}  // namespace octet::generate
