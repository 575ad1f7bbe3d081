// Models with experts: evaluation against Hugging Face's logits, other precisions, and refused training on
// GPUs. golden_test.cc checks their answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/profile.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/model_folder.h"
#include "octet/weights/safetensors.h"

namespace octet::generate::experts_test {
namespace {

using Tokens = std::vector<std::int32_t>;

const std::string kFolder = OCTET_SOURCE_DIR "/tests/golden/models/qwen3-moe";

DecoderOptions options_for(const precision::Recipe& recipe) {
  DecoderOptions options;
  options.architecture = runtime::read_model(kFolder);
  options.recipe = recipe;
  options.sequences = 2;
  options.capacity = 64;
  options.scored = 64;
  return options;
}

/// The reference's texts, and log-probabilities of each next token.
struct Reference {
  Reference() {
    const weights::SafetensorsFile file(kFolder + "/golden.safetensors");
    constexpr std::size_t length = 37, vocabulary = 192;
    std::vector<std::int64_t> ids(2 * length);
    std::vector<float> logits(2 * length * vocabulary);
    file.read("input_ids", 0, std::ssize(ids), ids.data());
    file.read("logits", 0, std::ssize(logits), logits.data());
    for (std::size_t row = 0; row < 2; ++row) {
      texts.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(row * length),
                         ids.begin() + static_cast<std::ptrdiff_t>((row + 1) * length));
      std::vector<double> own;
      for (std::size_t t = 0; t + 1 < length; ++t) {
        const float* const x = logits.data() + (row * length + t) * vocabulary;
        double sum = 0;
        for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(x[i]));
        own.push_back(static_cast<double>(x[texts.back()[t + 1]]) - std::log(sum));
      }
      logprobs.push_back(own);
    }
  }
  std::vector<Tokens> texts;
  std::vector<std::vector<double>> logprobs;
};

struct Errors {
  double worst = 0, mean = 0;
};

Errors errors(const std::vector<std::vector<double>>& found, const Reference& reference) {
  Errors all;
  double tokens = 0;
  for (std::size_t row = 0; row < reference.texts.size(); ++row) {
    EXPECT_EQ(found[row].size(), reference.logprobs[row].size());
    for (std::size_t t = 0; t < reference.logprobs[row].size(); ++t) {
      const double error = std::abs(found[row][t] - reference.logprobs[row][t]);
      all.worst = std::max(all.worst, error);
      all.mean += error;
      ++tokens;
    }
  }
  all.mean /= tokens;
  return all;
}

TEST(Experts, EvaluationHasTransformersLogits) {
  const Reference reference;
  const auto device = make_cpu_device({.threads = 1});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  const auto error_of = [&](const precision::Recipe& recipe) {
    Decoder decoder(*device, *job, *data, options_for(recipe));
    decoder.load_weights(kFolder);
    return errors(decoder.log_probabilities(reference.texts), reference);
  };
  EXPECT_LT(error_of({.compute = DType::f32}).worst, 1e-4);
  {
    // With deferred work, as on a GPU.
    const auto later = make_cpu_device({.threads = 1, .compute_worker = true});
    const auto group = job->collectives(comm::Mesh(1).group("data", 0), *later, comm::Carrier::automatic);
    Decoder decoder(*later, *job, *group, options_for({.compute = DType::f32}));
    decoder.load_weights(kFolder);
    EXPECT_LT(errors(decoder.log_probabilities(reference.texts), reference).worst, 1e-4);
  }
  // A token with nearly equal experts may choose others.
  const Errors bf16 = error_of({.compute = DType::bf16});
  EXPECT_LT(bf16.mean, 0.02);
  const Errors fp8 = error_of({.kind = precision::RecipeKind::rows, .compute = DType::bf16});
  EXPECT_LT(fp8.mean, 0.2);
  EXPECT_GT(fp8.mean, bf16.mean) << "attention, dense blocks and experts are in FP8";
}

// A grouped GEMM of all experts has the bits of one GEMM per expert, also with deferred work.
TEST(Experts, GroupedProductsHaveTheBitsOfEachExpertsOwn) {
  const Reference reference;
  const auto job = comm::make_self_job();
  const auto run = [&](precision::RecipeKind kind, const std::vector<Tokens>& texts, const char* wish,
                       bool later) {
    const auto device = make_cpu_device({.threads = 1, .compute_worker = later});
    const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
    Decoder decoder(*device, *job, *data, options_for({.kind = kind, .compute = DType::bf16}));
    decoder.load_weights(kFolder);
    ::setenv("OCTETRUN_GROUPED_GEMM", wish, 1);
    Profile profile(decoder.stream());
    const auto logprobs = decoder.log_probabilities(texts);
    std::int64_t grouped = 0;
    for (const auto& [section, row] : profile.collect())
      grouped += section.ends_with("grouped_gemm") ? row.calls : 0;
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    return std::pair{logprobs, grouped};
  };
  // With few tokens, rows are read by index; otherwise they are gathered first.
  const Tokens& text = reference.texts.front();
  const std::vector<Tokens> few{Tokens(text.begin(), text.begin() + 9)};
  for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::rows}) {
    for (const std::vector<Tokens>& texts : {few, reference.texts}) {
      const auto [own, none] = run(kind, texts, "never", false);
      EXPECT_EQ(none, 0);
      for (const bool later : {false, true}) {
        const auto [together, grouped] = run(kind, texts, "always", later);
        EXPECT_EQ(together, own);
        EXPECT_GE(grouped, 2 * 2) << "two products in each of the two blocks with experts";
      }
    }
  }
}

// With fp32 activations each expert has separate GEMMs, regardless of the environment.
TEST(Experts, InFp8BesideFp32AreNotGrouped) {
  const Reference reference;
  const auto device = make_cpu_device({.threads = 1});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  Decoder decoder(*device, *job, *data,
                  options_for({.kind = precision::RecipeKind::rows, .compute = DType::f32}));
  decoder.load_weights(kFolder);
  ::setenv("OCTETRUN_GROUPED_GEMM", "always", 1);
  const auto logprobs = decoder.log_probabilities(reference.texts);
  ::unsetenv("OCTETRUN_GROUPED_GEMM");
  EXPECT_LT(errors(logprobs, reference).mean, 0.2);
}

}  // namespace
}  // namespace octet::generate::experts_test
