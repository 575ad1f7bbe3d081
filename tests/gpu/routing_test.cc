// Experts of tokens and sums of weighted rows on the GPU, held against the CPU side.
#include "octet/ops/routing.h"

#include <limits>
#include <random>

#include "gpu/sides.h"

namespace octet::ops {
namespace {

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

Routed routed(bool gpu, const std::vector<float>& logits, std::int64_t tokens, std::int64_t experts,
              std::int64_t taken, bool normalised) {
  const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
  Side side(*device);
  Routed found{std::vector<std::int32_t>(static_cast<std::size_t>(tokens * taken), -1),
               std::vector<float>(static_cast<std::size_t>(tokens * taken), -1)};
  auto* ids = side.put(found.experts);
  auto* weights = side.put(found.weights);
  route(side, {.logits = ConstMatrix(side.put(logits), DType::f32, tokens, experts, experts + 2),
               .taken = taken,
               .normalised = normalised,
               .experts = ids,
               .weights = weights});
  Stream& stream = side;
  device->copy_to_host(stream, found.experts.data(), ids, found.experts.size() * sizeof(std::int32_t));
  device->copy_to_host(stream, found.weights.data(), weights, found.weights.size() * sizeof(float));
  stream.synchronize();
  return found;
}

TEST(GpuRouting, ExpertsAreThoseOfTheCpu) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (const std::int64_t experts : {1, 6, 31, 33, 128, 1024}) {
    for (const std::int64_t taken : {std::int64_t{1}, std::min<std::int64_t>(experts, 8), experts}) {
      for (const std::int64_t tokens : {1, 3, 130}) {
        std::vector<float> logits(static_cast<std::size_t>(tokens * (experts + 2)), 1e9f);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t e = 0; e < experts; ++e)
            logits[static_cast<std::size_t>(t * (experts + 2) + e)] = normal(random);
        for (const bool normalised : {false, true}) {
          const Routed here = routed(false, logits, tokens, experts, taken, normalised);
          const Routed there = routed(true, logits, tokens, experts, taken, normalised);
          for (std::size_t i = 0; i < here.weights.size(); ++i)
            EXPECT_NEAR(there.weights[i], here.weights[i], 1e-5f * here.weights[i] + 1e-30f);
          // Of the last of a thousand some are alike to the last bit.
          if (taken <= 8) {
            EXPECT_EQ(there.experts, here.experts) << experts << ", " << taken;
          }
        }
      }
    }
  }
}

TEST(GpuRouting, EqualsAndNansAreTakenAsOnTheCpu) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {2, 5, 5, 2, 5, 0, 0, 1, nan, 3, 0, 1, 0, 0};
  EXPECT_EQ(routed(true, logits, 2, 5, 4, true).experts, routed(false, logits, 2, 5, 4, true).experts);
}

TEST(GpuRouting, WeightedRowsAreThoseOfTheCpu) {
  std::mt19937 random(9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {1, 7, 48, 2048}) {
      for (const std::int64_t taken : {1, 2, 8}) {
        constexpr std::int64_t tokens = 21, rows = 50;
        const Tensor x = Tensor::random(dtype, rows, cols, 1),
                     addend = Tensor::random(dtype, tokens, cols, 2);
        const auto weights = random_floats(tokens * taken, 3);
        std::vector<std::int32_t> places(static_cast<std::size_t>(tokens * taken));
        for (std::int32_t& place : places) place = static_cast<std::int32_t>(random() % rows);
        both(
            [&](Side& s) {
              const Matrix out = s.put(addend);
              weighted_rows(s, {.x = s.put(x),
                                .taken = taken,
                                .places = s.put(places),
                                .weights = s.put(weights),
                                .addend = out,
                                .out = out});
              s.out("out", out);
            },
            {.relative = 1e-6, .absolute = 1e-5, .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops
