// Passes that begin before the host has read the results of the previous pass give the answers of sequential
// passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "generate/golden.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/model_folder.h"

namespace octet::generate::run_ahead_test {
namespace {

struct How {
  std::optional<bool> ahead;
  bool worker = false;  ///< enqueued work runs later
  std::int64_t sequences = 3, page_tokens = 128;
  int caches_of_one = 0;  ///< the cache holds this many sequences; 0: all
};

struct Model {
  Model(const std::string& name, const How& how)
      : device(make_cpu_device({.threads = 1, .compute_worker = how.worker})) {
    DecoderOptions options;
    options.architecture = runtime::read_model(kGolden + "models/" + name);
    options.recipe.compute = DType::f32;
    options.sequences = how.sequences;
    options.capacity = 128;
    options.prefill = 16;
    options.page_tokens = how.page_tokens;
    options.run_ahead = how.ahead;
    options.cache_bytes = static_cast<std::size_t>(how.caches_of_one) * least_cache_bytes(options);
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(kGolden + "models/" + name);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

struct Asked {
  Request request;
  AnswerOptions options;
};

/// Answers in the order of the requests. Requests are submitted when there is room.
std::vector<Answer> answer_all(Decoder& decoder, const std::vector<Asked>& asked,
                               const OnToken& on_token = {}) {
  std::vector<Answer> answers(asked.size());
  std::size_t next = 0;
  while (next < asked.size() || decoder.busy()) {
    for (; next < asked.size() && decoder.room() > 0; ++next)
      EXPECT_EQ(decoder.submit(asked[next].request, asked[next].options), next);
    for (Decoder::Finished& done : decoder.step(on_token)) answers.at(done.request) = std::move(done.answer);
  }
  return answers;
}

/// Requests of different lengths. Some share a prefix.
std::vector<Asked> questions(std::size_t count) {
  std::vector<Asked> asked;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt;
    for (std::size_t t = 0; t < 4 + 5 * i % 37; ++t)
      prompt.push_back(static_cast<std::int32_t>((7 * (t < 20 ? i % 3 : i) + 3 * t * t + t) % 50));
    asked.push_back({{prompt, i}, {.max_new = 6 + static_cast<std::int64_t>(9 * i % 31), .logprobs = 0}});
  }
  return asked;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].ids, want[i].ids) << "request " << i;
    ASSERT_EQ(got[i].finish, want[i].finish) << "request " << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size()) << "request " << i;
    for (std::size_t t = 0; t < got[i].logprobs.size(); ++t)
      ASSERT_NEAR(got[i].logprobs[t], want[i].logprobs[t], 1e-4) << "request " << i;
    ASSERT_EQ(got[i].top.size(), want[i].top.size()) << "request " << i;
  }
}

/// The same requests, each with a stop token from the middle of its answer.
std::vector<Asked> with_stops(std::vector<Asked> asked, const std::vector<Answer>& whole) {
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Tokens& ids = whole[i].ids;
    if (i % 4 < 3) asked[i].options.stop_ids = {ids[ids.size() * (i % 4) / 3]};
  }
  return asked;
}

class RunAhead : public testing::TestWithParam<const char*> {};

TEST_P(RunAhead, AnswersAreThoseOfPassesOneAfterTheOther) {
  const std::string name = GetParam();
  const std::vector<Asked> asked = questions(17);
  Model plain(name, {.ahead = false});
  const std::vector<Answer> whole = answer_all(*plain.decoder, asked);
  const std::vector<Asked> stopped = with_stops(asked, whole);
  Model plain_again(name, {.ahead = false});
  const std::vector<Answer> cut = answer_all(*plain_again.decoder, stopped);
  for (const bool worker : {false, true}) {
    for (const std::int64_t page_tokens : {4, 128}) {
      for (const int caches_of_one : {0, 2}) {
        for (const std::int64_t sequences : {1, 5}) {
          const How how{.ahead = true,
                        .worker = worker,
                        .sequences = sequences,
                        .page_tokens = page_tokens,
                        .caches_of_one = caches_of_one};
          SCOPED_TRACE(std::string(worker ? "later, " : "at once, ") + std::to_string(page_tokens) +
                       " tokens a page, " + std::to_string(caches_of_one) + " caches, " +
                       std::to_string(sequences) + " sequences");
          Model one(name, how), other(name, how);
          expect_same(answer_all(*one.decoder, asked), whole);
          expect_same(answer_all(*other.decoder, stopped), cut);
          if (HasFatalFailure()) return;
          EXPECT_FALSE(other.decoder->busy());
          EXPECT_EQ(other.decoder->room(), sequences);
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, RunAhead, testing::Values("qwen3", "gemma3", "llama3"));

TEST(RunAheadDecoder, APassHasBegunWhenTheTokensOfTheOneBeforeAreTold) {
  const std::vector<Asked> asked{{{{5, 17, 3, 44}, 0}, {.max_new = 6}}};
  for (const std::optional<bool> ahead : {std::optional<bool>(true), std::optional<bool>(false), {}}) {
    Model m("qwen3", {.ahead = ahead});
    std::vector<std::int64_t> passes;
    answer_all(*m.decoder, asked, [&](std::size_t, std::int32_t) {
      passes.push_back(m.decoder->counts().passes);
      return true;
    });
    // The last token is known to be the last. A CPU does not run ahead.
    const std::vector<std::int64_t> plain{1, 2, 3, 4, 5, 6}, begun{2, 3, 4, 5, 6, 6};
    EXPECT_EQ(passes, ahead.value_or(false) ? begun : plain);
  }
}

TEST(RunAheadDecoder, AnAnswerThatStopsCostsOnePassMore) {
  const Request request{{5, 17, 3, 44, 9, 21, 30}, 0};
  Model plain("qwen3", {.ahead = false});
  const Answer whole = answer_all(*plain.decoder, {{request, {.max_new = 30}}}).at(0);
  const std::int32_t stop = whole.ids.back();
  const auto length = std::ranges::find(whole.ids, stop) - whole.ids.begin();
  for (const bool heard : {false, true}) {
    std::int64_t tokens = 0;
    const OnToken ends = [&](std::size_t, std::int32_t) { return ++tokens < length; };
    AnswerOptions options{.max_new = 40};
    if (!heard) options.stop_ids = {stop};
    Model m("qwen3", {.ahead = true, .worker = true});
    const Answer answer = answer_all(*m.decoder, {{request, options}}, heard ? ends : OnToken()).at(0);
    EXPECT_EQ(answer.ids, Tokens(whole.ids.begin(), whole.ids.begin() + length));
    EXPECT_EQ(answer.finish, FinishReason::stop);
    EXPECT_EQ(m.decoder->counts().passes, length + (heard ? 1 : 2));
    EXPECT_EQ(m.decoder->counts().new_tokens, length);
  }
}

// If the host chooses tokens, no pass begins before the choice.
TEST(RunAheadDecoder, AnswersThatTheHostChoosesAreThoseOfPassesOneAfterTheOther) {
  const Sampling lively{.temperature = 3.0, .seed = 11}, penalty{.repetition_penalty = 1.3};
  std::vector<Asked> asked = questions(14);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    AnswerOptions& o = asked[i].options;
    switch (i % 7) {
      case 0:
        o.sampling = lively;
        break;
      case 1:
        o.sampling = penalty;
        break;
      case 2:
        o.logprobs = 3;
        break;
      case 3:
        o.stop_ids = {1, 2, 3, 44}, o.min_new = 5;
        break;
      default:
        break;
    }
  }
  Model plain("qwen3", {.ahead = false, .sequences = 4}), ahead("qwen3", {.ahead = true, .sequences = 4}),
      later("qwen3", {.ahead = true, .worker = true, .sequences = 4});
  const std::vector<Answer> want = answer_all(*plain.decoder, asked);
  expect_same(answer_all(*ahead.decoder, asked), want);
  expect_same(answer_all(*later.decoder, asked), want);
}

// Passes after the end of an answer write beyond the tokens that later prompts reuse.
TEST(RunAheadDecoder, AnswersThatWereCutShortAreFoundAgain) {
  const Request request{{5, 17, 3, 44, 9, 21, 30, 8, 8, 1, 40, 7, 2, 19, 33, 6, 12}, 0};
  Model plain("qwen3", {.ahead = false, .page_tokens = 4});
  const Tokens whole = answer_all(*plain.decoder, {{request, {.max_new = 30}}}).at(0).ids;
  Model m("qwen3", {.ahead = true, .worker = true, .page_tokens = 4});
  std::size_t asked = 0;
  for (std::size_t length = 1; length < 20; ++length) {
    // Continues an answer that an earlier request stopped.
    std::size_t told = 0;
    const auto ends = [&](std::size_t, std::int32_t) { return ++told < length; };
    m.decoder->submit(request, {.max_new = 30});
    ++asked;
    while (m.decoder->busy()) m.decoder->step(ends);
    Request longer = request;
    longer.prompt.insert(longer.prompt.end(), whole.begin(), whole.begin() + static_cast<long>(length));
    const std::size_t number = m.decoder->submit(longer, {.max_new = 30 - static_cast<std::int64_t>(length)});
    EXPECT_EQ(number, asked++);
    while (m.decoder->busy()) {
      for (const Decoder::Finished& done : m.decoder->step())
        EXPECT_EQ(done.answer.ids, Tokens(whole.begin() + static_cast<long>(length), whole.end())) << length;
    }
  }
  EXPECT_GT(m.decoder->counts().shared_tokens, 100);
}

TEST(RunAheadDecoder, MayEndWithAPassOnItsWay) {
  Model m("qwen3", {.ahead = true, .worker = true});
  m.decoder->submit({{5, 17, 3, 44}, 0}, {.max_new = 20});
  m.decoder->step();
  EXPECT_EQ(m.decoder->counts().passes, 2);
}

}  // namespace
}  // namespace octet::generate::run_ahead_test
