// A decoder gives the same answers from whole rows of logits and from the largest logits.
#include <gtest/gtest.h>

#include <vector>

#include "generate/golden.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/generate/decoder.h"
#include "octet/model/architecture.h"

namespace octet::generate::token_choice_test {
namespace {

/// A golden model with 192 tokens, of which `listed` are listed.
struct Model {
  Model(const std::string& name, std::int64_t listed, bool strict = false) {
    const std::string folder = kGolden + "models/" + name;
    DecoderOptions options;
    options.architecture = model::read_architecture(folder);
    options.recipe.compute = DType::f32;
    options.sequences = 4;
    options.capacity = 64;
    options.listed = listed;
    options.strict = strict;
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(folder);
  }
  std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

/// Requests of one call with different settings.
std::vector<AnswerOptions> kinds() {
  const std::vector<Sampling> samplings{
      {},
      {.repetition_penalty = 1.3},
      {.temperature = 1.0, .seed = 7},
      {.temperature = 3.0, .seed = 8},
      {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .repetition_penalty = 1.05},
      {.temperature = 1.0, .top_p = 0.9, .seed = 9},
      {.temperature = 1.5, .min_p = 0.3},
      {.temperature = 1.0, .top_p = 0.9, .repetition_penalty = 1.2},
      {.temperature = 1.0, .top_k = 3, .repetition_penalty = 0.8}};
  std::vector<AnswerOptions> all;
  for (const Sampling& sampling : samplings) {
    for (const std::int64_t logprobs : {-1, 0, 3, 30}) {
      for (const std::int64_t min_new : {0, 6}) {
        all.push_back({.sampling = sampling,
                       .stop_ids = min_new > 0 ? Tokens{1, 2, 3, 44, 60, 90} : Tokens{},
                       .max_new = 9,
                       .min_new = min_new,
                       .logprobs = logprobs});
      }
    }
  }
  return all;
}

std::vector<Answer> answers(Decoder& decoder, const std::vector<AnswerOptions>& kinds, std::uint32_t n) {
  std::vector<Answer> all(kinds.size() * n);
  std::size_t submitted = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (std::uint32_t sample = 0; sample < n; ++sample) {
      Tokens prompt{5, 17, 3, 44, 9, static_cast<std::int32_t>(i)};
      const std::size_t request = decoder.submit({.prompt = prompt, .row = i, .sample = sample}, kinds[i]);
      EXPECT_EQ(request, submitted++);
    }
  }
  while (decoder.busy()) {
    for (Decoder::Finished& done : decoder.step()) all.at(done.request) = std::move(done.answer);
  }
  return all;
}

void expect_same(const std::vector<Answer>& some, const std::vector<Answer>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (std::size_t i = 0; i < some.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(some[i].ids, others[i].ids);
    EXPECT_EQ(some[i].finish, others[i].finish);
    EXPECT_EQ(some[i].logprobs, others[i].logprobs) << "to the last bit";
    ASSERT_EQ(some[i].top.size(), others[i].top.size());
    for (std::size_t t = 0; t < some[i].top.size(); ++t) {
      ASSERT_EQ(some[i].top[t].size(), others[i].top[t].size());
      for (std::size_t k = 0; k < some[i].top[t].size(); ++k) {
        EXPECT_EQ(some[i].top[t][k].id, others[i].top[t][k].id);
        EXPECT_EQ(some[i].top[t][k].logprob, others[i].top[t][k].logprob);
      }
    }
  }
}

TEST(TokenChoice, AnswersFromWhatIsListedAreThoseFromWholeRows) {
  for (const char* name : {"qwen3", "llama3", "gemma2"}) {
    Model whole(name, 0);
    const std::vector<Answer> expected = answers(*whole.decoder, kinds(), 2);
    EXPECT_EQ(whole.decoder->counts().whole_rows, 0) << "of nothing that is listed";
    // Lists the whole vocabulary, enough for most requests, and almost nothing.
    for (const std::int64_t listed : {512, 40, 2}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(listed));
      Model m(name, listed);
      expect_same(answers(*m.decoder, kinds(), 2), expected);
      EXPECT_EQ(m.decoder->counts().whole_rows > 0, listed < 192);
    }
  }
}

TEST(TokenChoice, WholeRowsAreCountedWhereTheListedDoNotSuffice) {
  const auto whole_rows = [](std::int64_t listed, const AnswerOptions& options) {
    Model m("qwen3", listed);
    answers(*m.decoder, {options}, 1);
    return m.decoder->counts().whole_rows;
  };
  AnswerOptions flat{.sampling = {.temperature = 50, .top_p = 0.99}, .max_new = 9};
  EXPECT_EQ(whole_rows(20, flat), 9) << "nearly all tokens are in the nucleus";
  EXPECT_EQ(whole_rows(192, flat), 0);
  EXPECT_EQ(whole_rows(0, flat), 0);
  flat.sampling.top_k = 4;
  EXPECT_EQ(whole_rows(40, flat), 0);
  EXPECT_EQ(whole_rows(3, flat), 0) << "more are asked for than are listed";
}

TEST(TokenChoice, StrictAnswersComeFromWholeRows) {
  const auto listed_bytes = [](const Model& m) {
    std::size_t bytes = 0;
    for (const Reservation& r : m.decoder->arena().reservations())
      bytes += r.name == "decode/listed logits" && r.kind == MemoryKind::device ? r.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(listed_bytes(Model("qwen3", 40, true)), 0u);
  EXPECT_EQ(listed_bytes(Model("qwen3", 0)), 0u);
  EXPECT_GT(listed_bytes(Model("qwen3", 40)), 4u * 40 * 8);
  EXPECT_LT(listed_bytes(Model("qwen3", 40)), 4u * 192 * 8);
  EXPECT_LT(listed_bytes(Model("qwen3", 512)), 4u * 250 * 8) << "no more than the vocabulary has";
  Model strict("qwen3", 512, true), plain("qwen3", 512);
  const std::vector<AnswerOptions> sampled{{.sampling = {.temperature = 2}, .max_new = 9, .logprobs = 2}};
  const auto some = answers(*strict.decoder, sampled, 2), others = answers(*plain.decoder, sampled, 2);
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].ids, others[i].ids);
}

}  // namespace
}  // namespace octet::generate::token_choice_test
