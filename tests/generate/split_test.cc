// A model with layers split among ranks answers like the whole model.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "generate/golden.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/thread_ranks.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"
#include "octet/runtime/model_folder.h"
#include "team_messages.h"

namespace octet::generate::split_test {
namespace {

struct SplitSize {
  int tensor = 1, stages = 1;
  bool operator==(const SplitSize&) const = default;
  int ranks() const { return tensor * stages; }
};

DecoderOptions options_of(const std::string& folder) {
  DecoderOptions options;
  options.architecture = runtime::read_model(folder);
  options.recipe.compute = DType::f32;
  options.sequences = 6;
  options.prefill = 24;
  options.capacity = 128;
  return options;
}

/// Runs `lead` with the decoder of the leader of each of `replicas` replicas.
void with_split(const SplitSize& size, const std::string& folder, const DecoderOptions& options,
                const std::function<void(Team&, Decoder&)>& lead, int replicas = 1,
                bool compute_worker = false, comm::Carrier carrier = comm::Carrier::automatic) {
  comm::run_ranks_as_threads({.ranks = replicas * size.ranks(), .compute_worker = compute_worker},
                             [&](comm::Job& job, Device& device) {
                               Team team(job, device, size.tensor, size.stages, carrier);
                               Decoder decoder(device, team, options);
                               decoder.load_weights(folder);
                               EXPECT_EQ(lead_or_follow(team, decoder, [&] { lead(team, decoder); }), 0);
                             });
}

class Split : public testing::TestWithParam<std::tuple<std::string, SplitSize>> {
 protected:
  SplitSize size() const { return std::get<1>(GetParam()); }
  const Json reference_ = golden_reference(std::get<0>(GetParam()));
  const std::string folder_ = kGolden + "models/" + std::string(reference_["model"]);
};

TEST_P(Split, AnswersAreThoseOfTransformersInSmallPagesOfASmallCache) {
  for (const bool shares : {true, false}) {
    DecoderOptions options = options_of(folder_);
    options.share_prefixes = shares;
    options.page_tokens = 4;
    DecoderOptions of_cache = options;
    of_cache.sequences = 2;
    of_cache.architecture.share = {.tensor_size = size().tensor, .stages = size().stages};
    options.cache_bytes = full_cache_bytes(of_cache);
    with_split(size(), folder_, options,
               [&](Team&, Decoder& decoder) { expect_all_answers(decoder, reference_); });
  }
}

TEST_P(Split, WhatMayBeDrawnAndScoresAreThoseOfTransformers) {
  for (const std::int64_t rows : {32, 1}) {
    DecoderOptions options = options_of(folder_);
    options.score_rows = rows;
    with_split(size(), folder_, options, [&](Team&, Decoder& decoder) {
      expect_filters(decoder, reference_);
      expect_scores(decoder, reference_);
    });
  }
}

std::string split_name(const SplitSize& size) {
  return std::to_string(size.tensor) + "x" + std::to_string(size.stages);
}

void PrintTo(const SplitSize& size, std::ostream* out) {
  *out << split_name(size);
}

const std::vector<SplitSize> kSizes{{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}};

/// Whether the model can be split in this way. Norms of olmoe, olmo2 and olmo3 read all heads, delta rules
/// and latents are not split, and glm4-moe-groups has two heads.
bool splits_so(const std::string& model, const SplitSize& size) {
  const bool whole = model.starts_with("olmo") || model.starts_with("qwen3-next") ||
                     model.starts_with("qwen3-5") || model.starts_with("deepseek") ||
                     model == "glm4-moe-lite";
  return size.tensor <= (whole ? 1 : model == "glm4-moe-groups" ? 2 : 4);
}

/// Whether a later family is split like an earlier one.
bool splits_like_others(const std::string& model) {
  const std::vector<std::string> all{"seed-oss", "gemma1", "smollm3-windows", "olmo2", "olmo3", "hunyuan"};
  return std::ranges::find(all, model) != all.end();
}

/// Every model with one split, and every split. Each takes seconds.
std::vector<std::tuple<std::string, SplitSize>> splits() {
  std::vector<std::tuple<std::string, SplitSize>> some{{"llama3", kSizes[0]}, {"llama3", kSizes[2]}};
  std::size_t number = 0;
  for (const std::string& model : golden_models()) {
    if (splits_like_others(model)) continue;
    const std::size_t ways[] = {1, 3, 4};
    const SplitSize size = kSizes[ways[number++ % 3]];
    some.emplace_back(model, splits_so(model, size) ? size : kSizes[3]);
  }
  return some;
}

/// Every model with two more splits, including stages with tensor pieces, and two models with all splits.
/// Without the splits that splits() has.
std::vector<std::tuple<std::string, SplitSize>> more_splits() {
  const std::vector<std::tuple<std::string, SplitSize>> some = splits();
  std::vector<std::tuple<std::string, SplitSize>> all;
  std::size_t number = 0;
  for (const std::string& model : golden_models()) {
    const bool whole = model == "llama3" || model == "qwen3-moe";
    const std::size_t one = 1 + number++ % 3;
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      if (!splits_so(model, kSizes[i])) continue;
      if (std::ranges::count(some, std::tuple(model, kSizes[i])) > 0) continue;
      if (whole || i == one || i + 1 == kSizes.size()) all.emplace_back(model, kSizes[i]);
    }
  }
  return all;
}
std::string case_name(const testing::TestParamInfo<std::tuple<std::string, SplitSize>>& value) {
  return test_name(std::get<0>(value.param)) + "_" + split_name(std::get<1>(value.param));
}
INSTANTIATE_TEST_SUITE_P(Models, Split, testing::ValuesIn(splits()), case_name);
INSTANTIATE_TEST_SUITE_P(Whole, Split, testing::ValuesIn(more_splits()), case_name);

/// Answers of the whole model.
std::vector<Answer> whole_answers(const std::string& folder, const DecoderOptions& options,
                                  const std::vector<Request>& requests, const AnswerOptions& asked) {
  std::vector<Answer> answers;
  with_split({}, folder, options,
             [&](Team&, Decoder& decoder) { answers = decoder.complete(requests, asked); });
  return answers;
}

std::vector<Request> requests_of(const Json& reference) {
  std::vector<Request> requests;
  for (const Json& c : reference["greedy"])
    requests.push_back({c["prompt_ids"].get<Tokens>(), static_cast<std::uint64_t>(requests.size())});
  return requests;
}

// Like between GPUs of one host: the stream computes sums that fit. It adds them to the residual stream if no
// norm precedes the addition; gemma3 has one. In bf16 the bits equal sums by messages.
TEST(SplitSums, ThatAreDirectHaveTheBitsOfThoseByMessages) {
  for (const char* const model : {"llama3", "gemma3", "qwen3-moe"}) {
    const Json reference = golden_reference(model);
    const std::string folder = kGolden + "models/" + std::string(reference["model"]);
    const auto requests = requests_of(reference);
    const AnswerOptions asked{.sampling = {.temperature = 0.7}, .max_new = 20, .logprobs = 0};
    DecoderOptions options = options_of(folder);
    options.recipe.compute = DType::bf16;
    for (const int tensor : {2, 4}) {
      std::vector<Answer> by_messages, direct;
      with_split({tensor, 1}, folder, options,
                 [&](Team&, Decoder& decoder) { by_messages = decoder.complete(requests, asked); });
      with_split(
          {tensor, 1}, folder, options,
          [&](Team& team, Decoder& decoder) {
            EXPECT_TRUE(team.tensor().sums_directly(options.architecture.hidden, DType::bf16));
            direct = decoder.complete(requests, asked);
          },
          1, false, comm::Carrier::peer);
      ASSERT_EQ(direct.size(), by_messages.size());
      for (std::size_t i = 0; i < direct.size(); ++i) {
        EXPECT_EQ(direct[i].ids, by_messages[i].ids) << model << ", " << i;
        EXPECT_EQ(direct[i].logprobs, by_messages[i].logprobs) << model << ", " << i;
      }
    }
  }
}

// Passes of that many rows are recorded, so none of their sums may be a message.
TEST(SplitSums, AreDirectForEveryNumberOfRowsUpToTheOneThatIsTold) {
  comm::run_ranks_as_threads({.ranks = 2}, [](comm::Job& job, Device& device) {
    const comm::Group both{.name = "tensor", .ranks = {0, 1}};
    for (const comm::Carrier carrier : {comm::Carrier::peer, comm::Carrier::messages}) {
      const auto tensor = job.collectives(both, device, carrier);
      const TensorSums sums(*tensor, device);
      for (const std::int64_t cols : {std::int64_t{6}, std::int64_t{64}, std::int64_t{96}}) {
        const std::int64_t rows = sums.direct_rows(cols, DType::bf16);
        EXPECT_EQ(rows > 0, carrier == comm::Carrier::peer && cols != 6) << cols;
        EXPECT_FALSE(tensor->sums_directly((rows + 1) * cols, DType::bf16)) << cols;
        for (std::int64_t row = 1; row <= rows; ++row)
          EXPECT_TRUE(tensor->sums_directly(row * cols, DType::bf16)) << row << " of " << cols;
      }
    }
  });
}

// Three stages of a model of seven layers, with three batches in flight and drawn tokens.
TEST(SplitDraws, AreThoseOfTheWholeModelAtAnyNumberOfStages) {
  const Json reference = golden_reference("gemma3");
  const std::string folder = kGolden + "models/" + std::string(reference["model"]);
  const auto requests = requests_of(reference);
  const AnswerOptions asked{.sampling = {.temperature = 0.7, .top_k = 5}, .max_new = 30};
  DecoderOptions options = options_of(folder);
  options.page_tokens = 4;
  const std::vector<Answer> want = whole_answers(folder, options, requests, asked);
  for (const SplitSize size : {SplitSize{1, 3}, {1, 7}, {2, 3}, {4, 1}}) {
    for (const bool worker : {false, true}) {
      with_split(
          size, folder, options,
          [&](Team&, Decoder& decoder) {
            const std::vector<Answer> answers = decoder.complete(requests, asked);
            for (std::size_t i = 0; i < want.size(); ++i)
              EXPECT_EQ(answers[i].ids, want[i].ids) << split_name(size) << ", " << i;
          },
          1, worker);
    }
  }
}

// Biases, equal numbers of key and query heads, tied heads.
TEST(SplitModels, OthersScoreAlike) {
  const auto text = golden_reference("llama3")["scores"][0]["ids"].get<Tokens>();
  for (const char* model : {"llama-mha-bias", "llama", "llama3-tied", "qwen2-tied"}) {
    const std::string folder = kGolden + "models/" + model;
    DecoderOptions options = options_of(folder);
    options.score_rows = 16;
    Tokens ids;
    for (const std::int32_t id : text)
      ids.push_back(id % static_cast<std::int32_t>(options.architecture.vocabulary));
    Decoder::Score want;
    with_split({}, folder, options, [&](Team&, Decoder& decoder) { want = decoder.score(ids, 1); });
    for (const SplitSize size : {SplitSize{2, 1}, {4, 1}, {2, 2}}) {
      with_split(size, folder, options, [&](Team&, Decoder& decoder) {
        const Decoder::Score score = decoder.score(ids, 1);
        for (std::size_t t = 0; t < want.logprobs.size(); ++t)
          EXPECT_NEAR(score.logprobs[t], want.logprobs[t], 1e-4)
              << model << " " << split_name(size) << ", " << t;
      });
    }
  }
}

TEST(SplitReplicas, AnswerByThemselves) {
  const Json reference = golden_reference("llama3");
  const std::string folder = kGolden + "models/" + std::string(reference["model"]);
  std::vector<int> led(4);
  with_split(
      {2, 1}, folder, options_of(folder),
      [&](Team& team, Decoder& decoder) {
        EXPECT_EQ(team.replicas(), 4);
        EXPECT_EQ(team.peers().size(), 4);
        EXPECT_EQ(team.peers().rank(), team.replica());
        ++led[static_cast<std::size_t>(team.replica())];
        // The second replica has no requests.
        if (team.replica() != 1) expect_answers(decoder, reference["greedy"], {});
      },
      4);
  EXPECT_EQ(led, std::vector<int>(4, 1));
}

// bf16, FP8 weights and an FP8 cache round differently if rows are split. Results stay near results
// of whole rows.
TEST(SplitPrecision, NarrowFormatsStayNearTheWholeModel) {
  const Json reference = golden_reference("llama3");
  const std::string folder = kGolden + "models/" + std::string(reference["model"]);
  const auto text = reference["scores"][0]["ids"].get<Tokens>();
  struct Narrow {
    precision::RecipeKind kind;
    bool fp8_cache;
    double within;
  };
  for (const Narrow& narrow : {Narrow{precision::Recipe{}.kind, false, 0.05},
                               {precision::RecipeKind::rows, false, 0.5},
                               {precision::RecipeKind::rows, true, 0.5}}) {
    DecoderOptions options = options_of(folder);
    options.recipe.compute = DType::bf16;
    options.recipe.kind = narrow.kind;
    options.fp8_cache = narrow.fp8_cache;
    options.score_rows = 16;
    Decoder::Score want;
    with_split({}, folder, options, [&](Team&, Decoder& decoder) { want = decoder.score(text, 1); });
    for (const SplitSize size : {SplitSize{2, 1}, {4, 1}, {1, 2}, {2, 2}}) {
      with_split(size, folder, options, [&](Team&, Decoder& decoder) {
        const Decoder::Score score = decoder.score(text, 1);
        for (std::size_t t = 0; t < want.logprobs.size(); ++t) {
          const double within = size.tensor == 1 ? 0.0 : narrow.within;
          EXPECT_NEAR(score.logprobs[t], want.logprobs[t], within) << split_name(size) << ", token " << t;
        }
      });
    }
  }
}

TEST(SplitWeights, FreshOnesAreThoseOfTheWholeModel) {
  const Json reference = golden_reference("qwen3-moe");
  const std::string folder = kGolden + "models/" + std::string(reference["model"]);
  DecoderOptions options = options_of(folder);
  const Tokens prompt{3, 1, 4, 1, 5};
  std::vector<float> want;
  for (const SplitSize size : {SplitSize{1, 1}, {2, 1}, {2, 2}, {4, 3}}) {
    comm::run_ranks_as_threads({.ranks = size.ranks()}, [&](comm::Job& job, Device& device) {
      Team team(job, device, size.tensor, size.stages);
      Decoder decoder(device, team, options);
      decoder.initialise(7);
      lead_or_follow(team, decoder, [&] {
        const std::vector<float> logits = decoder.next_logits(prompt);
        if (want.empty()) want = logits;
        ASSERT_EQ(logits.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_NEAR(logits[i], want[i], 1e-5) << split_name(size);
      });
    });
  }
}

TEST(SplitRefusals, NameWhatStandsInTheWay) {
  const std::string folder = kGolden + "models/" + std::string(golden_reference("llama3")["model"]);
  const auto refused = [&](int ranks, const SplitSize& size, const std::string& expected) {
    // For errors that ranks agree on, one rank has the text.
    std::vector<std::string> said(static_cast<std::size_t>(ranks));
    comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, Device& device) {
      try {
        Team team(job, device, size.tensor, size.stages);
        Decoder decoder(device, team, options_of(folder));
        ADD_FAILURE() << split_name(size) << " on " << ranks << " ranks";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        said[static_cast<std::size_t>(job.rank())] = error.problem().what.empty() ? "" : error.what();
      }
    });
    EXPECT_NE(said.front().find(expected), std::string::npos) << said.front();
  };
  refused(3, {2, 1}, "a multiple of 2");
  refused(1, {2, 2}, "a multiple of 4");
  refused(3, {3, 1}, "attention heads, 4");
  refused(3, {1, 3}, "1 to 2 stages");
}

// Earlier stages have begun passes when the leader stops. All ranks run them, and no rank blocks at the end.
TEST(SplitEnds, PassesUnderWayAreRunByAll) {
  const std::string folder = kGolden + "models/" + std::string(golden_reference("llama3")["model"]);
  for (const bool fails : {false, true}) {
    std::vector<std::int64_t> passes(4);
    comm::run_ranks_as_threads({.ranks = 4, .compute_worker = true}, [&](comm::Job& job, Device& device) {
      Team team(job, device, 2, 2);
      Decoder decoder(device, team, options_of(folder));
      decoder.load_weights(folder);
      try {
        lead_or_follow(team, decoder, [&] {
          for (std::int32_t i = 0; i < 4; ++i) decoder.submit({.prompt = {3, 1, 4, i}}, {.max_new = 50});
          for (int step = 0; step < 5; ++step) decoder.step();
          if (fails) throw Error({.what = "something is wrong", .code = ExitCode::usage, .agreed = true});
        });
      } catch (const Error&) {
      }
      passes[static_cast<std::size_t>(job.rank())] = decoder.counts().passes;
    });
    EXPECT_GE(passes.front(), 6) << "two are under way when a step ends";
    EXPECT_EQ(passes, std::vector<std::int64_t>(4, passes.front()));
  }
}

// An error that the leaders share ends the other ranks with its code.
TEST(SplitErrors, TheLeadersErrorEndsAll) {
  const std::string folder = kGolden + "models/" + std::string(golden_reference("llama3")["model"]);
  std::vector<int> codes(2, -1);
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, Device& device) {
    Team team(job, device, 2, 1);
    Decoder decoder(device, team, options_of(folder));
    decoder.load_weights(folder);
    const auto rank = static_cast<std::size_t>(job.rank());
    try {
      codes[rank] = lead_or_follow(team, decoder, [&] {
        team.peers().together([&] { throw Error({.what = "something is wrong", .code = ExitCode::usage}); });
      });
    } catch (const Error& error) {
      codes[rank] = static_cast<int>(error.code());
    }
  });
  EXPECT_EQ(codes, std::vector<int>(2, 64));
}

}  // namespace
}  // namespace octet::generate::split_test
