// Compares the largest logits of rows on the GPU with the CPU side.
#include "octet/ops/logits.h"

#include <cmath>
#include <limits>
#include <random>

#include "gpu/sides.h"

namespace octet::ops::listed_logits_test {
namespace {

struct Listing {
  std::vector<RowOfLogits> rows;
  std::vector<ListedLogit> listed;
};

struct Asked {
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t most = 512;
  bool normalizers = true;
  std::vector<double> temperatures, draws;
};

/// Uses a row pitch of two logits more than the row length.
Listing list(bool gpu, const std::vector<float>& logits, const Asked& asked) {
  const auto device = gpu ? make_cuda_device(0) : make_cpu_device();
  Side side(*device);
  const auto rows = static_cast<std::size_t>(asked.rows);
  Listing out{.rows = std::vector<RowOfLogits>(rows, {-7, -7, -7, -7, -7, -7, -7, -7}),
              .listed = std::vector<ListedLogit>(rows * static_cast<std::size_t>(asked.most), {-7, -7})};
  auto* told = side.put(out.rows);
  auto* listed = side.put(out.listed);
  listed_logits(side, {.logits = ConstMatrix(side.put(logits), DType::f32, asked.rows, asked.vocabulary,
                                             asked.vocabulary + 2),
                       .normalizers = asked.normalizers,
                       .temperatures = side.put(asked.temperatures),
                       .draws = side.put(asked.draws),
                       .most = asked.most,
                       .rows = told,
                       .listed = listed});
  Stream& stream = side;
  device->copy_to_host(stream, out.rows.data(), told, rows * sizeof(RowOfLogits));
  device->copy_to_host(stream, out.listed.data(), listed, out.listed.size() * sizeof(ListedLogit));
  stream.synchronize();
  return out;
}

void expect_alike(const Listing& there, const Listing& here) {
  for (std::size_t r = 0; r < here.rows.size(); ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r);
    const RowOfLogits &gpu = there.rows[r], &cpu = here.rows[r];
    EXPECT_EQ(gpu.best, cpu.best);
    EXPECT_EQ(gpu.count, cpu.count);
    EXPECT_EQ(gpu.drawn, cpu.drawn);
    EXPECT_EQ(gpu.drawn_logit, cpu.drawn_logit);
    if (!std::isnan(cpu.highest)) {
      EXPECT_EQ(gpu.highest, cpu.highest);
      EXPECT_EQ(gpu.bound, cpu.bound);
    } else {
      EXPECT_TRUE(std::isnan(gpu.highest) && std::isnan(gpu.bound));
    }
    EXPECT_NEAR(gpu.normalizer, cpu.normalizer, 1e-11);  // double, in another order
    EXPECT_NEAR(gpu.sum, cpu.sum, 1e-11 * cpu.sum);
  }
  for (std::size_t i = 0; i < here.listed.size(); ++i) {
    ASSERT_EQ(there.listed[i].id, here.listed[i].id) << i;
    ASSERT_EQ(there.listed[i].logit, here.listed[i].logit) << i;
  }
}

TEST(GpuListedLogits, AgreeWithTheCpu) {
  std::mt19937 random(5);
  for (const std::int64_t vocabulary : {1, 3, 1026, 32002, 128256}) {
    for (const std::int64_t rows : {1, 33}) {
      for (const double deviation : {0.02, 3.0, 15.0}) {
        std::normal_distribution<double> normal(0, deviation);
        std::vector<float> logits(static_cast<std::size_t>(rows * (vocabulary + 2)));
        for (float& x : logits) {
          const double v = normal(random);
          x = static_cast<float>(rows == 1 ? v : std::round(v * 8) / 8);  // many equal values
        }
        Asked asked{.rows = rows, .vocabulary = vocabulary, .temperatures = {}, .draws = {}};
        std::uniform_real_distribution<double> uniform(0, 1);
        for (std::int64_t r = 0; r < rows; ++r) {
          asked.temperatures.push_back(0.35 * static_cast<double>(r % 4));
          asked.draws.push_back(r % 3 == 0 ? -1 : uniform(random));
        }
        for (const std::int64_t most : {1, 7, 512}) {
          SCOPED_TRACE(testing::Message() << vocabulary << " tokens, room for " << most);
          asked.most = most;
          asked.normalizers = most > 1;
          const Listing there = list(true, logits, asked);
          expect_alike(there, list(false, logits, asked));
          const Listing again = list(true, logits, asked);
          for (std::size_t r = 0; r < there.rows.size(); ++r) {
            EXPECT_EQ(again.rows[r].sum, there.rows[r].sum);
            EXPECT_EQ(again.rows[r].normalizer, there.rows[r].normalizer);
          }
        }
      }
    }
  }
}

TEST(GpuListedLogits, DrawAlongTheWholeVocabulary) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 1);
  const std::int64_t vocabulary = 5003, rows = 400;
  std::vector<float> row(static_cast<std::size_t>(vocabulary + 2));
  for (float& x : row) x = normal(random);
  for (std::size_t i = 100; i < 300; ++i) row[i] = -std::numeric_limits<float>::infinity();
  std::vector<float> logits;
  Asked asked{.rows = rows, .vocabulary = vocabulary, .most = 16, .temperatures = {}, .draws = {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    logits.insert(logits.end(), row.begin(), row.end());
    asked.temperatures.push_back(r % 2 == 0 ? 1.0 : 0.6);
    asked.draws.push_back((static_cast<double>(r) + 0.37) / static_cast<double>(rows));
  }
  asked.draws[0] = 0;
  expect_alike(list(true, logits, asked), list(false, logits, asked));
}

TEST(GpuListedLogits, NormalizersHaveTheBitsOfBestTokens) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 4);
  const std::int64_t vocabulary = 32001, rows = 5;
  std::vector<float> logits(static_cast<std::size_t>(rows * (vocabulary + 2)));
  for (float& x : logits) x = normal(random);
  const Listing listing = list(true, logits,
                               {.rows = rows,
                                .vocabulary = vocabulary,
                                .temperatures = std::vector<double>(rows, 0.0),
                                .draws = std::vector<double>(rows, -1.0)});
  const auto device = make_cuda_device(0);
  Side side(*device);
  auto* out = side.put(std::vector<BestToken>(rows));
  best_tokens(side, {.logits = ConstMatrix(side.put(logits), DType::f32, rows, vocabulary, vocabulary + 2),
                     .normalizers = true,
                     .out = out});
  std::vector<BestToken> best(rows);
  Stream& stream = side;
  device->copy_to_host(stream, best.data(), out, best.size() * sizeof(BestToken));
  stream.synchronize();
  for (std::size_t r = 0; r < best.size(); ++r) EXPECT_EQ(listing.rows[r].normalizer, best[r].normalizer);
}

TEST(GpuListedLogits, SeeNansAndInfinities) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const std::int64_t vocabulary : {40, 5002}) {
    const std::int64_t ld = vocabulary + 2, rows = 5;
    std::vector<float> logits(static_cast<std::size_t>(rows * ld), -inf);
    const auto at = [&](std::int64_t row, std::int64_t column) -> float& {
      return logits[static_cast<std::size_t>(row * ld + column)];
    };
    at(0, 37) = nan, at(0, 12) = nan, at(0, 3) = inf;
    at(1, 36) = inf, at(1, 5) = inf;
    at(2, 37) = -3.0e38f, at(2, 38) = 3.0e38f, at(2, 39) = 0;
    for (std::int64_t i = 0; i < vocabulary; ++i) at(4, i) = 2.5f;
    const Asked asked{.rows = rows,
                      .vocabulary = vocabulary,
                      .temperatures = std::vector<double>(rows, 1.0),
                      .draws = std::vector<double>(rows, 0.7)};
    const Listing there = list(true, logits, asked), here = list(false, logits, asked);
    expect_alike(there, here);
    EXPECT_EQ(here.rows[0].count, 0);
    EXPECT_EQ(here.rows[2].count, 3);
    EXPECT_EQ(there.rows[3].drawn, -1);
  }
}

}  // namespace
}  // namespace octet::ops::listed_logits_test
