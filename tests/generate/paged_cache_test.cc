// Answers of whole models from paged caches equal answers of transformers. They also equal, to the last bit,
// answers from a contiguous cache, for any cache size and with shared pages.
#include <gtest/gtest.h>

#include <algorithm>
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

namespace octet::generate::paged_cache_test {
namespace {

DecoderOptions options_of(const std::string& name, std::int64_t sequences, std::int64_t page_tokens) {
  DecoderOptions options;
  options.architecture = runtime::read_model(kGolden + "models/" + name);
  options.recipe.compute = DType::f32;
  options.sequences = sequences;
  options.capacity = 128;
  options.prefill = 16;
  options.page_tokens = page_tokens;
  return options;
}

struct Model {
  Model(const std::string& name, const DecoderOptions& options) {
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(kGolden + "models/" + name);
  }
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

/// Equal ids and log-probabilities, bit by bit.
void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].ids, want[i].ids) << where << ", request " << i;
    ASSERT_EQ(got[i].logprobs, want[i].logprobs) << where << ", request " << i;
    ASSERT_EQ(got[i].finish, want[i].finish) << where;
  }
}

/// Bit by bit equal if rows are independent. Otherwise equal except for rounding: a draw may then select
/// another token, and the answer differs from there.
void expect_alike(const std::vector<Answer>& got, const std::vector<Answer>& want, bool alone, DType compute,
                  bool fp8) {
  if (alone) return expect_same(got, want, fp8 ? "E4M3" : "compute dtype");
  ASSERT_EQ(got.size(), want.size());
  std::size_t apart = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::string where = (fp8 ? "E4M3, request " : "compute dtype, request ") + std::to_string(i);
    ASSERT_EQ(got[i].ids.size(), want[i].ids.size()) << where;
    const auto same = std::ranges::mismatch(got[i].ids, want[i].ids).in1 - got[i].ids.begin();
    if (same < std::ssize(got[i].ids)) ++apart;
    expect_logprobs({got[i].logprobs.begin(), got[i].logprobs.begin() + same},
                    {want[i].logprobs.begin(), want[i].logprobs.begin() + same}, alone, compute, fp8, where);
    if (apart == 0) {
      ASSERT_EQ(got[i].finish, want[i].finish) << where;
    }
  }
  EXPECT_LE(apart, got.size() / 4) << "answers with another token, by a rounding";
}

class Paged : public testing::TestWithParam<std::string> {};

TEST_P(Paged, AnswersAreThoseOfTransformersAndTheBitsThoseOfOnePiece) {
  const Json reference = read_json(kGolden + "generate/" + GetParam() + ".json");
  const std::string model = reference["model"];
  // Each prompt twice, and once more followed by its answer, so they share prefixes.
  std::vector<Request> requests;
  for (const Json& c : reference["greedy"]) {
    requests.push_back({c["prompt_ids"].get<Tokens>(), requests.size()});
    requests.push_back(requests.back());
    Tokens longer = requests.back().prompt;
    const auto said = c["output_ids"].get<Tokens>();
    longer.insert(longer.end(), said.begin(), said.begin() + 20);
    requests.push_back({longer, requests.size()});
  }
  const AnswerOptions wanted{.max_new = 40, .logprobs = 0};
  DecoderOptions whole = options_of(model, 1, 128);
  whole.share_prefixes = false;
  const std::vector<Answer> want = Model(model, whole).decoder->complete(requests, wanted);
  for (std::size_t i = 0; i < reference["greedy"].size(); ++i) {
    const Json& c = reference["greedy"][i];
    ASSERT_EQ(want[3 * i].ids, c["output_ids"].get<Tokens>());
    for (std::size_t t = 0; t < want[3 * i].ids.size(); ++t)
      EXPECT_NEAR(want[3 * i].logprobs[t], c["logprobs"][t].get<double>(), 1e-4);
  }
  for (const std::int64_t sequences : {1, 3, 64}) {
    for (const bool share : {false, true}) {
      for (const bool small : {false, true}) {
        DecoderOptions options = options_of(model, sequences, 4);
        options.share_prefixes = share;
        if (small) options.cache_bytes = 2 * least_cache_bytes(options);
        Model m(model, options);
        SCOPED_TRACE(std::to_string(sequences) + " sequences" + (share ? ", shared" : "") +
                     (small ? ", small" : ""));
        expect_alike(m.decoder->complete(requests, wanted), want, rows_are_alone(*m.device), DType::f32,
                     false);
        if (HasFatalFailure()) return;
        const DecodeCounts& counts = m.decoder->counts();
        if (!share) {
          EXPECT_EQ(counts.shared_tokens, 0);
        } else if (sequences > 1) {
          EXPECT_GT(counts.shared_tokens, 0);
        }
        if (!small) {
          EXPECT_EQ(counts.put_back, 0);
        }
        EXPECT_LE(counts.cache_pages_used, counts.cache_pages);
        EXPECT_GT(counts.cache_pages_used, 0);
      }
    }
  }
}

TEST_P(Paged, SampledAnswersOfACacheForTwoAreThoseOfALargeOne) {
  const std::string model = read_json(kGolden + "generate/" + GetParam() + ".json")["model"];
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 12; ++i) {
    Tokens prompt;
    for (std::size_t t = 0; t < 30 + i; ++t)
      prompt.push_back(static_cast<std::int32_t>((7 * (t < 20 ? i % 2 : i) + 3 * t * t) % 50));
    requests.push_back({prompt, 100 + i, static_cast<std::uint32_t>(i % 3)});
  }
  const AnswerOptions wanted{.sampling = {.temperature = 3.0, .seed = 11}, .max_new = 60, .logprobs = 0};
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const bool fp8 : {false, true}) {
      DecoderOptions options = options_of(model, 12, 128);
      options.recipe.compute = compute;
      options.fp8_cache = fp8;
      options.share_prefixes = false;
      Model large(model, options);
      const auto want = large.decoder->complete(requests, wanted);
      options.page_tokens = 4;
      options.share_prefixes = true;
      options.cache_bytes = 2 * least_cache_bytes(options);
      Model small(model, options);
      // Sequences that were put back are computed with other neighbours.
      expect_alike(small.decoder->complete(requests, wanted), want, rows_are_alone(*small.device), compute,
                   fp8);
      const DecodeCounts& counts = small.decoder->counts();
      // If most blocks have windows, sequences hold all their pages from the start.
      if (GetParam() != "gemma3" && GetParam() != "mistral") {
        EXPECT_GT(counts.put_back, 0);
        EXPECT_GT(counts.recomputed_tokens, 0);
      }
      EXPECT_GT(counts.cache_pages_used, counts.cache_pages / 2);
      EXPECT_EQ(counts.new_tokens, 12 * 60) << "a token is told once";
    }
  }
}

TEST_P(Paged, ScoresAreTheSameInPages) {
  const Json reference = read_json(kGolden + "generate/" + GetParam() + ".json");
  for (const std::int64_t rows : {128, 7, 1}) {
    DecoderOptions whole = options_of(reference["model"], 1, 128);
    whole.score_rows = rows;
    DecoderOptions paged = whole;
    paged.page_tokens = 4;
    Model one(reference["model"], whole), pages(reference["model"], paged);
    for (const Json& c : reference["scores"]) {
      const auto ids = c["ids"].get<Tokens>();
      EXPECT_EQ(pages.decoder->score(ids, 1).logprobs, one.decoder->score(ids, 1).logprobs) << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Paged,
                         testing::Values("gemma2", "gemma3", "llama-linear-rope", "llama3", "mistral",
                                         "qwen2", "qwen3-moe", "qwen3-yarn", "qwen3"),
                         [](const auto& value) {
                           std::string name = value.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(PagedDecoder, SixtyPromptsThatShareTheirBeginningComputeSevenPercent) {
  Tokens question;
  for (std::size_t t = 0; t < 133; ++t) question.push_back(static_cast<std::int32_t>((5 * t * t + t) % 47));
  std::vector<Request> requests;
  for (std::size_t i = 0; i < 60; ++i) {
    Tokens prompt = question;
    for (std::size_t t = 0; t < 7; ++t)
      prompt.push_back(static_cast<std::int32_t>((11 * i + 7 * t + i * t) % 47));
    requests.push_back({prompt, i});
  }
  for (const char* name : {"qwen3", "gemma3"}) {
    DecoderOptions options = options_of(name, 8, 64);
    options.capacity = 160;
    options.prefill = 64;
    Model m(name, options);
    const auto answers = m.decoder->complete(requests, {.max_new = 5, .logprobs = 0});
    const DecodeCounts& counts = m.decoder->counts();
    EXPECT_EQ(counts.prompt_tokens, 60 * 140);
    EXPECT_LE(counts.prompt_tokens - counts.shared_tokens, 60 * 140 * 7 / 100) << name;
    options.share_prefixes = false;
    Model alone(name, options);
    SCOPED_TRACE(name);
    expect_alike(answers, alone.decoder->complete(requests, {.max_new = 5, .logprobs = 0}),
                 rows_are_alone(*alone.device), DType::f32, false);
  }
}

// A benchmark's steps begin when all its prompts are cached, which fill the cache to the last page.
TEST(PagedDecoder, ABenchFindsItsPromptsAgain) {
  for (const std::int64_t context : {120, 126, 250}) {
    const BenchOptions options{.sequences = 12, .context = context, .steps = 3, .warmup = 1};
    Model m("qwen3",
            bench_decoder(options, runtime::read_model(kGolden + "models/qwen3"), {.compute = DType::f32}));
    bench(*m.decoder, options);
    EXPECT_EQ(m.decoder->counts().shared_tokens, 12 * (context - 1));
  }
}

TEST(PagedDecoder, ACacheThatDoesNotHoldOneSequenceIsRefusedWithFigures) {
  DecoderOptions options = options_of("gemma2", 2, 4);
  const std::size_t least = least_cache_bytes(options);
  EXPECT_EQ(full_cache_bytes(options), 2 * least);
  const auto device = make_dry_device();
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  options.cache_bytes = least;
  EXPECT_EQ(Decoder(*device, *job, *data, options).counts().cache_pages,
            Decoder(*device, *job, *data, options_of("gemma2", 1, 4)).counts().cache_pages);
  options.cache_bytes = least - 1;
  try {
    const Decoder decoder(*device, *job, *data, options);
    FAIL() << "one byte is missing";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    const std::string said = e.what();
    for (const char* word : {"does not hold one sequence of 128 tokens", "pages of 4 tokens",
                             "--kv-cache-bytes", "--max-length"})
      EXPECT_NE(said.find(word), std::string::npos) << said;
  }
}

// Llama-3.1-8B in bf16: 128 KiB per token. Gemma 3 has windows of 1,024 tokens in five of six blocks.
TEST(PagedDecoder, BytesAreThoseOfPages) {
  DecoderOptions options;
  options.architecture = model::find_shape("llama-3.1-8b");
  options.recipe.compute = DType::bf16;
  options.sequences = 3;
  options.capacity = 1000;
  EXPECT_EQ(least_cache_bytes(options), 16u * 64 * (128 << 10));
  EXPECT_EQ(full_cache_bytes(options), 3u * 16 * 64 * (128 << 10));
  options.fp8_cache = true;
  EXPECT_EQ(least_cache_bytes(options), 16u * 64 * 32 * 2 * 8 * (128 + 4));
  options.page_tokens = 16;
  EXPECT_EQ(least_cache_bytes(options), 63u * 16 * 32 * 2 * 8 * (128 + 4));
}

// If every other block has a window of 16, the cache of these blocks holds the window and one pass.
TEST(PagedDecoder, WindowsHoldWhatIsSeenAlone) {
  DecoderOptions windows = options_of("gemma2", 1, 4), none = windows;
  windows.capacity = none.capacity = 4096;
  for (auto& block : none.architecture.blocks) block.window = 0;
  // (15 + 16 + 2) / 4 + 1 pages for half of the blocks.
  EXPECT_DOUBLE_EQ(
      static_cast<double>(least_cache_bytes(windows)) / static_cast<double>(least_cache_bytes(none)),
      (1024.0 + 9) / (2 * 1024));
}

}  // namespace
}  // namespace octet::generate::paged_cache_test
