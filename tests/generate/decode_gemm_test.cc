// Passes of very few tokens, with GEMMs that include the adjacent small ops: answers are equal to the last
// bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cpu.h"
#include "octet/device/profile.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/instance.h"
#include "octet/runtime/model_folder.h"

namespace octet::generate::decode_gemm_test {
namespace {

/// Answers of a decoder, and the number of such GEMMs.
struct Said {
  std::vector<Answer> answers;
  std::int64_t alone = 0;
  std::int64_t layers = 0;
};

std::int64_t decode_gemms(Profile& profile) {
  std::int64_t count = 0;
  for (const auto& [section, row] : profile.collect()) {
    if (section.ends_with("decode_gemm")) count += row.calls;
  }
  return count;
}

/// `watched`: with a profile, which enqueues each such GEMM separately. Otherwise consecutive GEMMs are
/// enqueued together.
Said answers(const std::string& name, bool fp8, std::int64_t sequences, const char* wish,
             bool watched = true) {
  const std::string folder = OCTET_SOURCE_DIR "/tests/golden/models/" + name;
  DecoderOptions options;
  options.architecture = runtime::read_model(folder);
  options.recipe.compute = DType::bf16;
  if (fp8) options.recipe.kind = precision::RecipeKind::rows;
  options.sequences = sequences;
  options.capacity = 64;
  const auto device = make_cpu_device({.threads = 1});
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  Decoder decoder(*device, *job, *data, options);
  decoder.load_weights(folder);
  ::setenv("OCTETRUN_LONE_GEMM", wish, 1);
  std::optional<Profile> profile;
  if (watched) profile.emplace(decoder.stream());
  Said said{.layers = options.architecture.layers};
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < sequences; ++i) requests.push_back({.prompt = {5, 17, 3, 44, 9, 21, 30}});
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].prompt[0] += static_cast<std::int32_t>(i);
  said.answers = decoder.complete(requests, {.max_new = 9, .logprobs = 0});
  if (watched) said.alone = decode_gemms(*profile);
  ::unsetenv("OCTETRUN_LONE_GEMM");
  return said;
}

void expect_the_same(const std::string& name, bool fp8, std::int64_t sequences) {
  SCOPED_TRACE(name + (fp8 ? ", E4M3, " : ", bf16, ") + std::to_string(sequences));
  const Said with = answers(name, fp8, sequences, "always"), without = answers(name, fp8, sequences, "never");
  const Said together = answers(name, fp8, sequences, "always", false);
  EXPECT_EQ(without.alone, 0);
  // Passes of prompts have at least seven tokens and do not use these GEMMs. Then eight passes use four GEMMs
  // per block. With a post-norm (gemma2), the next norm adds its output, and stays a separate op.
  const std::int64_t of_pass = name == "gemma2" ? with.layers + 1 : 4 * with.layers;
  EXPECT_EQ(with.alone, sequences <= 4 ? 8 * of_pass : 0);
  ASSERT_EQ(with.answers.size(), without.answers.size());
  ASSERT_EQ(together.answers.size(), without.answers.size());
  for (std::size_t i = 0; i < with.answers.size(); ++i) {
    EXPECT_EQ(with.answers[i].ids, without.answers[i].ids);
    EXPECT_EQ(with.answers[i].logprobs, without.answers[i].logprobs);
    EXPECT_EQ(together.answers[i].ids, without.answers[i].ids);
    EXPECT_EQ(together.answers[i].logprobs, without.answers[i].logprobs);
  }
}

// Biases, norms of heads, post-norms with both activations, and neither.
TEST(DecodeGemmAnswers, HaveTheBitsOfTheOpsOneAfterTheOther) {
  for (const std::string name : {"llama", "qwen2", "qwen3", "gemma2"}) {
    for (const bool fp8 : {false, true}) {
      for (const std::int64_t sequences : {1, 4}) expect_the_same(name, fp8, sequences);
    }
  }
  expect_the_same("llama", true, 5);
}

// With deterministic: strict, the sums of a row do not depend on the number of rows.
TEST(DecodeGemmAnswers, AreNotMadeInFixedOrder) {
  for (const bool strict : {false, true}) {
    runtime::InstanceOptions options;
    options.architecture = runtime::read_model(OCTET_SOURCE_DIR "/tests/golden/models/llama");
    options.store.recipe.compute = DType::bf16;
    options.store.training = false;
    options.store.strict = strict;
    options.transformer.training = false;
    options.transformer.max_tokens = options.transformer.max_length = 16;
    const auto device = make_cpu_device({.threads = 1});
    const auto job = comm::make_self_job();
    const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
    runtime::Instance model(*device, *job, *data, options);
    model.initialise(3);
    ::setenv("OCTETRUN_LONE_GEMM", "always", 1);
    Decoder decoder(model, {.sequences = 1, .capacity = 48});
    Profile profile(decoder.stream());
    decoder.complete({{.prompt = {5, 17, 3}}}, {.max_new = 4});
    EXPECT_EQ(decode_gemms(profile) > 0, !strict);
    ::unsetenv("OCTETRUN_LONE_GEMM");
  }
}

}  // namespace
}  // namespace octet::generate::decode_gemm_test
