// GEMM formats of an engine: planned by shapes on a dry device, and counted over ranks.
#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/model/shapes.h"
#include "octet/train/engine.h"

namespace octet::train::gemms_test {
namespace {

runtime::InstanceOptions options_of(std::int64_t hidden, precision::RecipeKind kind) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.hidden = hidden;
  o.store.recipe = {.kind = kind, .compute = DType::bf16};
  if (kind == precision::RecipeKind::block) o.store.recipe.gradient_format = DType::e4m3;
  o.transformer.max_tokens = o.transformer.max_length = 128;
  return o;
}

/// Formats of forward, dgrad and wgrad of one kind of GEMM on a GPU.
std::string planned(const runtime::InstanceOptions& options, std::size_t row) {
  const auto device = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto job = comm::make_dry_job({});
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  Engine engine(*device, *job, *data, options);
  std::string text;
  for (const ops::GemmOutcome& outcome : engine.audit().rows().at(row).planned) {
    text += std::string(text.empty() ? "" : " ") + ops::name_of(outcome.way);
  }
  return text;
}

std::string planned(std::int64_t hidden, precision::RecipeKind kind, std::size_t row) {
  return planned(options_of(hidden, kind), row);
}

constexpr std::size_t kQkv = 0, kOutput = 1, kHead = 4;

TEST(Gemms, OfAHiddenSizeOf104AreDecodedOnAGpu) {
  using enum precision::RecipeKind;
  for (const auto kind : {delayed, current, block}) {
    EXPECT_EQ(planned(128, kind, kQkv), "fp8 fp8 fp8");
    EXPECT_EQ(planned(128, kind, kHead), "none none none") << "the head is not asked to be in FP8";
  }
  EXPECT_EQ(planned(104, current, kQkv), "filled decoded decoded");
  EXPECT_EQ(planned(104, current, kOutput), "decoded filled fp8");
  EXPECT_EQ(planned(104, block, kQkv), "decoded decoded decoded");
  EXPECT_EQ(planned(104, block, kOutput), "decoded decoded fp8");
}

// No GEMM of this model can run in FP8 on a GPU, with any recipe.
TEST(Gemms, OfOddWidthsAreAllDecoded) {
  using enum precision::RecipeKind;
  for (const auto kind : {delayed, current, block}) {
    runtime::InstanceOptions odd = options_of(104, kind);
    odd.architecture.intermediate = 100;
    odd.architecture.heads = {.q_heads = 3, .kv_heads = 1, .head_dim = 8};
    for (std::size_t row = 0; row < kHead; ++row) {
      EXPECT_EQ(planned(odd, row), "decoded decoded decoded") << row;
    }
  }
}

TEST(Gemms, OfAllRanksAreAdded) {
  comm::run_ranks_as_threads({.ranks = 3}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(128, precision::RecipeKind::current));
    const ops::GemmOutcome emulated{.way = ops::GemmWay::emulated, .calls = 1};
    for (int i = 0; i <= job.rank(); ++i) engine.audit().count({}, ops::GemmKind::forward, emulated);
    EXPECT_EQ(engine.instance().audit_of_all().gemms(), 6);
    EXPECT_EQ(engine.audit().gemms(), 1 + job.rank());
  });
}

// GEMMs of one rank fall back, and every rank ends.
TEST(Gemms, NoneInFp8EndTheRunAfterItsFirstStep) {
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of(128, precision::RecipeKind::current));
    const ops::GemmOutcome decoded{
        .way = ops::GemmWay::decoded, .reason = ops::GemmReason::refused, .calls = 1};
    if (job.rank() == 1) engine.audit().count({}, ops::GemmKind::forward, decoded);
    EXPECT_THROW(engine.instance().check_gemms(), Error);
  });
}

}  // namespace
}  // namespace octet::train::gemms_test
