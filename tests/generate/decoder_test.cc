// Answers of a whole model: where they end, and that neighbours and piece sizes do not change them.
#include "octet/generate/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "generate/rows_alone.h"
#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"

namespace octet::generate::decoder_test {
namespace {

using Tokens = std::vector<std::int32_t>;

/// A small golden model.
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
    return decoder->complete({{prompt, 0}}, {.sampling = sampling, .stop_ids = stops, .max_new = max_new})
        .at(0)
        .ids;
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

std::vector<Tokens> ids_of(const std::vector<Answer>& answers) {
  std::vector<Tokens> ids;
  for (const Answer& answer : answers) ids.push_back(answer.ids);
  return ids;
}

/// Returns `whole` up to the first token of `stops`.
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

// Claiming lets other busy processes slow the ops only in proportion. Strict answers have the bits of
// training.
TEST(Decoder, ThreadsOfItsOpsClaimPiecesUnlessItIsStrict) {
  Model m;
  EXPECT_TRUE(m.decoder->stream().claims());
  DecoderOptions strict = m.decoder->options();
  strict.strict = true;
  EXPECT_FALSE(Decoder(*m.device, *m.job, *m.data, strict).stream().claims());
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

/// Bytes of weights that a decoder reserves, per parameter of its model.
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
  // Small tensors of the golden model are padded to a multiple of 256 bytes.
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
      expected.push_back(alone.decoder->complete({request}, {.sampling = sampling, .max_new = 9}).at(0).ids);
    }
    for (const auto& [sequences, prefill] : {std::pair{3, 512}, {2, 4}, {7, 7}, {16, 16}}) {
      Model together(sequences, 64, prefill);
      std::vector<Tokens> told(requests.size());
      const auto answers = together.decoder->complete(requests, {.sampling = sampling, .max_new = 9},
                                                      [&](std::size_t request, std::int32_t token) {
                                                        told.at(request).push_back(token);
                                                        return true;
                                                      });
      EXPECT_EQ(ids_of(answers), expected)
          << sequences << " side by side, " << prefill << " tokens at a time";
      EXPECT_EQ(told, expected) << "what is said while it is made";
    }
  }
}

Tokens prefix_of(std::size_t length) {
  Tokens prefix;
  for (std::size_t t = 0; t < length; ++t)
    prefix.push_back(static_cast<std::int32_t>((5 * t * t + 3 * t) % 50));
  return prefix;
}

std::vector<Request> behind(const Tokens& prefix, std::size_t count) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt = prefix;
    for (std::size_t t = 0; t < 2 + i % 3; ++t)
      prompt.push_back(static_cast<std::int32_t>((11 * i + 7 * t + 1) % 50));
    requests.push_back({prompt, i});
  }
  return requests;
}

TEST(Decoder, PromptsThatBeginAlikeComputeTheBeginningOnce) {
  const std::vector<Request> requests = behind(prefix_of(40), 12);
  for (const Sampling& sampling : {Sampling{}, kLively}) {
    std::vector<Tokens> expected;
    for (const Request& request : requests) {
      Model fresh(1);
      expected.push_back(fresh.decoder->complete({request}, {.sampling = sampling, .max_new = 7}).at(0).ids);
    }
    for (const auto& [sequences, prefill] : {std::pair{1, 512}, {3, 512}, {3, 9}, {16, 16}}) {
      Model m(sequences, 64, prefill);
      EXPECT_EQ(ids_of(m.decoder->complete(requests, {.sampling = sampling, .max_new = 7})), expected)
          << sequences << " side by side, " << prefill << " tokens at a time";
      const DecodeCounts& counts = m.decoder->counts();
      EXPECT_EQ(counts.prompt_tokens, 12 * 42 + 4 * 3);
      EXPECT_GE(counts.shared_tokens, 11 * 40);
      EXPECT_EQ(counts.new_tokens, 12 * 7);
    }
  }
}

TEST(Decoder, ASharedBeginningOutlivesTheSequenceThatComputedIt) {
  Model m(2);
  const std::vector<Request> requests = behind(prefix_of(30), 3);
  const Tokens first = m.answer(requests[0].prompt, {}, 5);
  Model fresh(2);
  const Tokens expected = fresh.answer(requests[2].prompt, {}, 5);
  EXPECT_EQ(m.answer(requests[2].prompt, {}, 5), expected);
  EXPECT_EQ(m.decoder->counts().shared_tokens, 30);
  // Prompt and answer are the beginning of the next prompt.
  Tokens next = requests[2].prompt;
  next.insert(next.end(), expected.begin(), expected.end());
  next.push_back(7);
  Model other(2);
  EXPECT_EQ(m.answer(next, {}, 5), other.answer(next, {}, 5));
  EXPECT_EQ(m.decoder->counts().shared_tokens, 30 + static_cast<std::int64_t>(requests[2].prompt.size()) + 4)
      << "the last token of an answer was never taken";
}

TEST(Decoder, APromptThatWasAskedBeforeIsAnsweredAgain) {
  Model m(2);
  const Tokens prompt = prefix_of(30), first = m.answer(prompt, {}, 5);
  EXPECT_EQ(m.answer(prompt, {}, 5), first);
  EXPECT_EQ(m.decoder->counts().shared_tokens, 29) << "the last one's logits are wanted";
}

TEST(Decoder, ShortBeginningsAreComputedAgain) {
  Model m(2);
  m.decoder->complete(behind(prefix_of(12), 4), {.max_new = 2});
  EXPECT_EQ(m.decoder->counts().shared_tokens, 0);
}

TEST(Decoder, AnAnswerGoesOnUntilItIsAsLongAsAskedFor) {
  Model m;
  const Tokens whole = m.answer(kPrompt, {}, 12);
  const Tokens stops{whole[0]};
  ASSERT_TRUE(m.answer(kPrompt, stops, 12).empty());
  const auto longer =
      m.decoder->complete({{kPrompt, 0}}, {.stop_ids = stops, .max_new = 12, .min_new = 4}).at(0);
  EXPECT_GE(longer.ids.size(), 4u);
  EXPECT_EQ(std::ranges::count(longer.ids, whole[0]), 0);
}

TEST(Decoder, TellsWhyAnAnswerEnded) {
  Model m(3, 16);
  const auto finish = [&](const AnswerOptions& options, const OnToken& on_token = {}) {
    return m.decoder->complete({{kPrompt, 0}}, options, on_token).at(0).finish;
  };
  const Tokens whole = m.answer(kPrompt, {}, 8);
  EXPECT_EQ(finish({.max_new = 3}), FinishReason::length);
  EXPECT_EQ(finish({.max_new = 100}), FinishReason::length) << "the cache is full";
  EXPECT_EQ(finish({.stop_ids = {whole[1]}, .max_new = 8}), FinishReason::stop);
  int told = 0;
  EXPECT_EQ(finish({.max_new = 8}, [&](std::size_t, std::int32_t) { return ++told < 3; }),
            FinishReason::stop);
  EXPECT_EQ(told, 3);
}

TEST(Decoder, RequestsMayComeWhileOthersAreAnswered) {
  const std::vector<Request> requests = behind(prefix_of(20), 5);
  Model whole(2);
  const auto expected = ids_of(whole.decoder->complete(requests, {.max_new = 6}));
  Model m(2);
  std::vector<Tokens> answers(5);
  std::size_t next = 0;
  EXPECT_EQ(m.decoder->room(), 2);
  while (next < 5 || m.decoder->busy()) {
    if (next < 5) {
      EXPECT_EQ(m.decoder->submit(requests[next], {.max_new = 6}), next);
      ++next;
    }
    for (const auto& done : m.decoder->step()) answers.at(done.request) = done.answer.ids;
  }
  EXPECT_EQ(answers, expected);
  EXPECT_EQ(m.decoder->room(), 2);
}

TEST(Decoder, ARequestThatCannotBeAnsweredIsRefusedAlone) {
  Model m(1);
  m.decoder->submit({kPrompt, 0}, {.max_new = 2});
  EXPECT_THROW(m.decoder->submit({{}, 1}, {}), Error);
  EXPECT_THROW(m.decoder->submit({kPrompt, 1}, {.sampling = {.temperature = -1}}), Error);
  EXPECT_EQ(m.decoder->submit({kPrompt, 2}, {.max_new = 2}), 1u);
  std::size_t answered = 0;
  while (m.decoder->busy()) answered += m.decoder->step().size();
  EXPECT_EQ(answered, 2u);
}

/// Answers of a decoder to requests with separate options.
std::vector<Answer> answer_all(Model& m, const std::vector<std::pair<Request, AnswerOptions>>& asked) {
  const std::size_t first = m.decoder->submit(asked[0].first, asked[0].second);
  for (std::size_t i = 1; i < asked.size(); ++i) m.decoder->submit(asked[i].first, asked[i].second);
  std::vector<Answer> answers(asked.size());
  while (m.decoder->busy()) {
    for (Decoder::Finished& done : m.decoder->step()) answers[done.request - first] = std::move(done.answer);
  }
  return answers;
}

// Some requests need only the most probable token, others all logits.
TEST(Decoder, WhatNeighboursWantOfTheirLogitsDoesNotChangeAnAnswer) {
  const Sampling penalty{.repetition_penalty = 1.3};
  const std::vector<AnswerOptions> kinds{{.max_new = 9},
                                         {.sampling = kLively, .max_new = 9, .logprobs = 0},
                                         {.max_new = 9, .logprobs = 0},
                                         {.max_new = 9, .logprobs = 3},
                                         {.sampling = penalty, .max_new = 9},
                                         {.stop_ids = {1, 2, 3, 44}, .max_new = 9, .min_new = 5},
                                         {.max_new = 9}};
  std::vector<std::pair<Request, AnswerOptions>> asked;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    Tokens prompt;
    for (std::size_t t = 0; t < 3 + i; ++t) prompt.push_back(static_cast<std::int32_t>((9 * i + 4 * t) % 50));
    asked.push_back({{prompt, i}, kinds[i]});
  }
  Model together(7);
  const std::vector<Answer> answers = answer_all(together, asked);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    Model alone(1);
    const Answer expected = answer_all(alone, {asked[i]}).at(0);
    EXPECT_EQ(answers[i].ids, expected.ids) << i;
    expect_logprobs(answers[i].logprobs, expected.logprobs, rows_are_alone(*together.device), DType::f32,
                    false, std::to_string(i));
    EXPECT_EQ(answers[i].logprobs.size(), kinds[i].logprobs >= 0 ? answers[i].ids.size() : 0) << i;
    ASSERT_EQ(answers[i].top.size(), kinds[i].logprobs > 0 ? answers[i].ids.size() : 0) << i;
  }
  // The most probable token and its log-probability equal the first of the K most probable, to the last bit.
  Model m(1);
  AnswerOptions one = kinds[2], three = kinds[3];
  const Answer short_way = answer_all(m, {{asked[0].first, one}}).at(0);
  const Answer long_way = answer_all(m, {{asked[0].first, three}}).at(0);
  EXPECT_EQ(short_way.ids, long_way.ids);
  EXPECT_EQ(short_way.logprobs, long_way.logprobs);
  for (std::size_t t = 0; t < long_way.top.size(); ++t) {
    EXPECT_EQ(long_way.top[t][0].id, short_way.ids[t]);
    EXPECT_EQ(long_way.top[t][0].logprob, short_way.logprobs[t]);
  }
}

TEST(Decoder, OtherWeightsGiveOtherAnswers) {
  Model m(2);
  const Tokens before = m.answer(kPrompt, {}, 8);
  m.decoder->initialise(3);
  const Tokens fresh = m.answer(kPrompt, {}, 8);
  EXPECT_NE(fresh, before);
  m.decoder->initialise(4);
  EXPECT_NE(m.answer(kPrompt, {}, 8), fresh);
  m.decoder->load_weights(OCTET_SOURCE_DIR "/tests/golden/models/qwen3");
  EXPECT_EQ(m.answer(kPrompt, {}, 8), before);
}

}  // namespace
}  // namespace octet::generate::decoder_test
