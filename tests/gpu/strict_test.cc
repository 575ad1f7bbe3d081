// Strict answers of a GPU. The rows of GEMMs and attention are independent of each other. Log-probabilities
// of sampled tokens have the bits that training computes. OCTETRUN_STRICT_TOKENS sets the number of tokens.
#include <cstdio>
#include <cstdlib>

#include "generate/strict_runs.h"
#include "gpu/device_arrays.h"
#include "octet/config/config.h"
#include "octet/device/cpu.h"
#include "octet/model/shapes.h"
#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::strict_test {
namespace {

using generate::Tokens;

// --- GEMMs ---------------------------------------------------------------------------------------------

struct Kind {
  DType operands, result;
  std::int64_t n, k;
  bool bias = false, addend = false;
};

ops::HostArray gemm_kind(ops::Bench& bench, const Kind& p, const ops::HostArray& a, const ops::HostArray& b,
                         const ops::HostArray& addend, std::int64_t first, std::int64_t count, bool stands) {
  const auto part = [&](const ops::HostArray& of, std::int64_t width) {
    ops::HostArray rows(count * width, of.dtype);
    const std::size_t row = static_cast<std::size_t>(width) * size_of(of.dtype);
    std::copy_n(of.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * row),
                static_cast<std::size_t>(count) * row, rows.bytes.begin());
    return rows;
  };
  ops::HostArray d(count * p.n, p.result);
  void* to = bench.put(d);
  const std::vector<float> bias(static_cast<std::size_t>(p.n), 0.375f);
  ops::GemmArgs args{.a = {.data = bench.put(part(a, p.k)), .dtype = p.operands, .rows = count, .cols = p.k},
                     .b = {.data = bench.put(b), .dtype = p.operands, .rows = p.n, .cols = p.k},
                     .d = {.data = to, .dtype = p.result, .rows = count, .cols = p.n, .ld = p.n},
                     .bias = p.bias ? bench.put(bias) : nullptr,
                     .b_stands = stands,
                     .fixed_order = true};
  if (p.addend) args.addend = {bench.put(part(addend, p.n)), p.result, count, p.n, p.n};
  const std::size_t bytes = ops::gemm_workspace(bench.device(), args);
  args.workspace = {bench.room(bytes), bytes};
  ops::gemm(bench.stream(), args);
  bench.get(d, to);
  return d;
}

TEST(GpuStrict, RowsOfAProductDoNotDependOnThoseBesideThem) {
  constexpr std::int64_t kRows = 2100;
  for (const Kind& p :
       {Kind{DType::bf16, DType::bf16, 1024, 1024}, Kind{DType::bf16, DType::bf16, 1024, 4096, false, true},
        Kind{DType::bf16, DType::bf16, 1536, 1024, true},
        Kind{DType::bf16, DType::bf16, 4096, 14336, false, true}, Kind{DType::bf16, DType::bf16, 6144, 4096},
        Kind{DType::bf16, DType::bf16, 192, 64}, Kind{DType::bf16, DType::f32, 4096, 256},
        Kind{DType::f32, DType::f32, 384, 128}}) {
    ops::Bench gpu(make_cuda_device());
    std::mt19937 random(2);
    ops::HostArray a(kRows * p.k, p.operands), b(p.n * p.k, p.operands), addend(kRows * p.n, p.result);
    a.fill(random, 1.0f), b.fill(random, 0.1f), addend.fill(random, 1.0f);
    const ops::HostArray whole = gemm_kind(gpu, p, a, b, addend, 0, kRows, false);
    const std::size_t row = static_cast<std::size_t>(p.n) * size_of(p.result);
    for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1},
                                                                                         {77, 1},
                                                                                         {13, 2},
                                                                                         {2, 7},
                                                                                         {500, 16},
                                                                                         {41, 33},
                                                                                         {100, 64},
                                                                                         {130, 65},
                                                                                         {9, 128},
                                                                                         {3, 500},
                                                                                         {1, 1031}}) {
      for (const bool stands : {false, true}) {
        const ops::HostArray part = gemm_kind(gpu, p, a, b, addend, first, count, stands);
        EXPECT_TRUE(std::equal(
            part.bytes.begin(), part.bytes.end(),
            whole.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * row)))
            << name_of(p.operands) << " into " << name_of(p.result) << ", " << p.n << " x " << p.k << ": "
            << count << " rows from " << first << (stands ? ", the weight stands" : "");
      }
    }
  }
}

// --- answers -------------------------------------------------------------------------------------------

struct Place {
  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
};

constexpr std::int64_t kVocabulary = 16384;

/// A model with GEMMs and heads like a real model, but only a few blocks. The vocabulary is smaller, because
/// the host computes its logarithms.
model::Architecture small_llama(std::int64_t layers) {
  model::Architecture a = model::find_shape("llama-3.2-1b");
  a.layers = layers;
  a.vocabulary = kVocabulary;
  a.blocks.resize(static_cast<std::size_t>(layers));
  return a;
}

generate::DecoderOptions options_of(const model::Architecture& architecture, DType compute) {
  generate::DecoderOptions options;
  options.architecture = architecture;
  options.recipe.compute = compute;
  options.strict = true;
  options.capacity = options.scored = 400;
  return options;
}

std::int64_t wanted_tokens(std::int64_t otherwise) {
  const char* told = std::getenv("OCTETRUN_STRICT_TOKENS");
  return told != nullptr ? std::atoll(told) : otherwise;
}

void expect_bits_of_training(const char* name, const model::Architecture& architecture, DType compute,
                             const std::string& folder, std::int64_t tokens) {
  Place here;
  const generate::DecoderOptions base = options_of(architecture, compute);
  const auto made = [&](const generate::DecoderOptions& options) {
    auto decoder = std::make_unique<generate::Decoder>(*here.device, *here.job, *here.data, options);
    folder.empty() ? decoder->initialise(5) : decoder->load_weights(folder);
    return decoder;
  };
  const auto scorer = made(base);
  generate::Drawn drawn(23);
  generate::Compared all;
  for (std::int64_t round = 0; all.tokens < tokens; ++round) {
    generate::DecoderOptions ways = generate::drawn_ways(drawn, base);
    if (round % 2 == 0) ways.sequences = 64;
    const auto decoder = made(ways);
    const auto requests = generate::drawn_requests(drawn, 40 + drawn(100), 250, architecture.vocabulary);
    const auto answers = decoder->complete(
        requests, {.sampling = {.temperature = 1.0}, .max_new = 20 + drawn(120), .logprobs = 0});
    all.add(generate::compare(requests, answers,
                              [&](const Tokens& whole) { return scorer->log_probabilities({whole}).at(0); }));
  }
  std::printf("%s in %s: %lld tokens sampled, %lld with other bits, largest difference %g\n", name,
              std::string(name_of(compute)).c_str(), static_cast<long long>(all.tokens),
              static_cast<long long>(all.different), all.largest);
  EXPECT_EQ(all.different, 0) << name;
}

TEST(GpuStrict, SampledTokensHaveTheLogProbabilitiesOfTraining) {
  for (const DType compute : {DType::bf16, DType::f32}) {
    for (const char* model : {"qwen3", "qwen2", "gemma2", "gemma3", "mistral", "llama3"}) {
      const std::string folder = std::string(OCTET_SOURCE_DIR "/tests/golden/models/") + model;
      model::Architecture architecture = model::read_architecture(folder);
      expect_bits_of_training(model, architecture, compute, folder, wanted_tokens(3000) / 3);
    }
  }
}

TEST(GpuStrict, ManyTokensOfBlocksAsWideAsALlamas) {
  expect_bits_of_training("llama", small_llama(4), DType::bf16, "", wanted_tokens(5000));
}

// A decoder together with a model in training, which scores packed micro-batches with the training core.
TEST(GpuStrict, BesideAModelInTrainingToo) {
  Place here;
  config::Config config;
  config.deterministic = "strict";
  config.bf16 = true;
  config.device = "cuda";
  constexpr std::int64_t kTokens = 1024;
  train::Engine engine(*here.device, *here.job, *here.data,
                       setup::instance_options(config, small_llama(2), kTokens, 400, 16));
  engine.initialise(3);
  generate::Decoder decoder(engine.instance(),
                            {.sequences = 7, .capacity = 400, .prefill = 100, .scored = 400});
  generate::Drawn drawn(4);
  for (int step = 0; step < 2; ++step) {
    runtime::HostBatch batch;
    batch.cu_seqlens.push_back(0);
    for (const auto& r : generate::drawn_requests(drawn, 4, 200, kVocabulary))
      runtime::add_document(batch, r.prompt, r.prompt);
    engine.begin(1);
    engine.micro_batch(batch);
    engine.finish(1e-3);
    const auto requests = generate::drawn_requests(drawn, 20, 200, kVocabulary);
    const auto answers =
        decoder.complete(requests, {.sampling = {.temperature = 1.0}, .max_new = 60, .logprobs = 0});
    const generate::Compared all = generate::compare(requests, answers, [&](const Tokens& whole) {
      // With another document in front, so that the tested document does not begin at token 0.
      const Tokens neighbour(static_cast<std::size_t>(2 + drawn(300)), 7);
      runtime::HostBatch packed;
      packed.cu_seqlens.push_back(0);
      runtime::add_document(packed, neighbour, neighbour);
      runtime::add_document(packed, whole, whole);
      const auto scores = engine.log_probabilities(packed);
      return std::vector<double>(scores.begin() + std::ssize(neighbour) - 1, scores.end());
    });
    EXPECT_EQ(all.different, 0) << "of " << all.tokens << ", by up to " << all.largest;
  }
}

// --- attention -----------------------------------------------------------------------------------------

// Sums in a fixed order equal cuDNN's sums except for rounding, and backward reads their logarithms.
TEST(GpuStrict, AttentionAndItsGradientsAreThoseOfACpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t head_dim : {33, 64, 128, 256}) {
      for (const std::int64_t window : {0, 50}) {
        const ops::Heads heads{4, 2, head_dim};
        const std::vector<std::int32_t> starts{0, 1, 130, 260, 300};
        constexpr std::int64_t tokens = 310;  // the last ten tokens have no document
        const std::int64_t width = heads.q_heads * heads.head_dim;
        std::vector<ops::HostArray> outs, gradients;
        for (const bool on_gpu : {true, false}) {
          ops::Bench bench(on_gpu ? make_cuda_device() : make_cpu_device());
          std::mt19937 random(11);
          ops::HostArray qkv(tokens * heads.qkv_width(), dtype), d_out(tokens * width, dtype),
              out(tokens * width, dtype), d_qkv(tokens * heads.qkv_width(), dtype),
              lse(heads.q_heads * tokens, DType::f32);
          qkv.fill(random, 1.0f), d_out.fill(random, 1.0f);
          void* const in = bench.put(qkv);
          void* const to = bench.put(out);
          auto* const logs = static_cast<float*>(bench.put(lse));
          void* const back = bench.put(d_qkv);
          const ops::Documents documents{
              .cu_seqlens = bench.put(starts), .count = 4, .max_length = 130, .tokens = tokens};
          const std::size_t bytes = ops::attention_workspace(bench.device(), heads, dtype, tokens, 130, true);
          const ops::Workspace room{bench.room(bytes), bytes};
          const ops::ConstMatrix x(in, dtype, tokens, heads.qkv_width(), heads.qkv_width());
          const ops::Matrix y{to, dtype, tokens, width, width};
          ops::attention(bench.stream(), {.qkv = x,
                                          .heads = heads,
                                          .documents = documents,
                                          .scale = 0.1f,
                                          .window = window,
                                          .out = y,
                                          .lse = logs,
                                          .fixed_order = true,
                                          .workspace = room});
          ops::attention_backward(bench.stream(),
                                  {.qkv = x,
                                   .out = y,
                                   .d_out = ops::ConstMatrix(bench.put(d_out), dtype, tokens, width, width),
                                   .lse = logs,
                                   .heads = heads,
                                   .documents = documents,
                                   .scale = 0.1f,
                                   .window = window,
                                   .d_qkv = {back, dtype, tokens, heads.qkv_width(), heads.qkv_width()},
                                   .workspace = room});
          bench.get(out, to), bench.get(d_qkv, back);
          outs.push_back(std::move(out)), gradients.push_back(std::move(d_qkv));
        }
        const std::string where = std::string(name_of(dtype)) + ", heads of " + std::to_string(head_dim) +
                                  ", window " + std::to_string(window);
        const double bound = dtype == DType::f32 ? 1e-4 : 0.03;
        for (std::int64_t i = 0; i < tokens * width; ++i)
          ASSERT_NEAR(outs[0][i], outs[1][i], bound * (1 + std::abs(outs[1][i]))) << where << ", " << i;
        for (std::int64_t i = 0; i < tokens * heads.qkv_width(); ++i)
          ASSERT_NEAR(gradients[0][i], gradients[1][i], 2 * bound * (1 + std::abs(gradients[1][i])))
              << where << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace octet::strict_test
