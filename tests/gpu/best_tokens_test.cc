// Compares the most probable token on the GPU with the CPU side.
#include "octet/ops/logits.h"

#include <cmath>
#include <limits>
#include <random>

#include "gpu/sides.h"

namespace octet::ops::best_tokens_test {
namespace {

std::vector<BestToken> best_of(bool gpu, const std::vector<float>& logits, std::int64_t rows,
                               std::int64_t vocabulary, bool normalizers) {
  const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
  Side side(*device);
  auto* out = side.put(std::vector<BestToken>(static_cast<std::size_t>(rows), {-1, -1, -1}));
  best_tokens(side, {.logits = ConstMatrix(side.put(logits), DType::f32, rows, vocabulary - 2, vocabulary),
                     .normalizers = normalizers,
                     .out = out});
  std::vector<BestToken> best(static_cast<std::size_t>(rows));
  Stream& stream = side;
  device->copy_to_host(stream, best.data(), out, best.size() * sizeof(BestToken));
  stream.synchronize();
  return best;
}

TEST(GpuBestTokens, AgreesWithTheCpu) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 6);
  for (const std::int64_t vocabulary : {3, 34, 1026, 32002, 128258}) {
    for (const std::int64_t rows : {1, 33}) {
      std::vector<float> logits(static_cast<std::size_t>(rows * vocabulary));
      for (float& x : logits) x = std::round(normal(random));  // many equal values
      for (const bool normalizers : {false, true}) {
        const auto here = best_of(false, logits, rows, vocabulary, normalizers);
        const auto there = best_of(true, logits, rows, vocabulary, normalizers);
        for (std::size_t r = 0; r < here.size(); ++r) {
          EXPECT_EQ(there[r].id, here[r].id) << vocabulary << ", row " << r;
          EXPECT_EQ(there[r].logit, here[r].logit);
          EXPECT_NEAR(there[r].normalizer, here[r].normalizer, 1e-11);  // double, in another order
          // With three tokens, the sum may be 1.
          if (!normalizers || vocabulary > 1000) {
            EXPECT_EQ(there[r].normalizer != 0, normalizers);
          }
        }
      }
    }
  }
}

TEST(GpuBestTokens, SeesNansAndInfinities) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const std::int64_t vocabulary : {40, 5002}) {
    std::vector<float> logits(static_cast<std::size_t>(4 * vocabulary), -inf);
    const auto at = [&](std::int64_t row, std::int64_t column) -> float& {
      return logits[static_cast<std::size_t>(row * vocabulary + column)];
    };
    at(0, 37) = nan, at(0, 12) = nan, at(0, 3) = inf;
    at(1, 36) = inf, at(1, 5) = inf;
    at(2, 37) = -3.0e38f;
    const auto here = best_of(false, logits, 4, vocabulary, false);
    const auto there = best_of(true, logits, 4, vocabulary, false);
    for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(there[r].id, here[r].id) << r;
    EXPECT_EQ(here[0].id, 12);
    EXPECT_TRUE(std::isnan(there[0].logit));
    EXPECT_EQ(there[2].logit, -3.0e38f);
  }
}

TEST(GpuBestTokens, IdsThatAreNotKnownYetAreThoseOfTheRowsTheyName) {
  std::vector<BestToken> best(700);
  std::vector<std::int32_t> ids(1500);
  for (std::size_t i = 0; i < best.size(); ++i) best[i].id = static_cast<std::int32_t>(i * i % 5003);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<std::int32_t>(31 * i % 700);
    ids[i] = i % 3 == 0 ? row : -1 - row;
  }
  const auto filled = [&](bool gpu) {
    const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
    Side side(*device);
    auto* there = side.put(ids);
    fill_ids(side, {.best = side.put(best), .ids = there, .count = std::ssize(ids) - 1});
    std::vector<std::int32_t> out(ids.size());
    Stream& stream = side;
    device->copy_to_host(stream, out.data(), there, out.size() * sizeof(std::int32_t));
    stream.synchronize();
    return out;
  };
  EXPECT_EQ(filled(true), filled(false));
}

}  // namespace
}  // namespace octet::ops::best_tokens_test
