#include "cuda/gemm/gemm_tiles.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "cuda/gemm/autotune_score.h"
#include "octet/base/dtype.h"

namespace octet::ops::cuda::gemm_tiles_test {
namespace {

// Computes busy_share by counting tiles.
double counted(const Tile& tile, const ResultShape& result, int multiprocessors) {
  std::int64_t tiles = 0, elements = 0, rounds = 0;
  for (std::int64_t r = 0; r < result.rows; r += tile.rows) {
    for (std::int64_t c = 0; c < result.cols; c += tile.cols) {
      ++tiles;
      elements += std::min<std::int64_t>(tile.rows, result.rows - r) *
                  std::min<std::int64_t>(tile.cols, result.cols - c);
    }
  }
  for (std::int64_t left = tiles; left > 0; left -= multiprocessors) ++rounds;
  return static_cast<double>(elements) /
         static_cast<double>(rounds * multiprocessors * tile.rows * tile.cols);
}

TEST(GemmTiles, TheBusyShareIsWhatCountingGives) {
  std::mt19937 random(7);
  const auto between = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int i = 0; i < 200; ++i) {
    const Tile tile{between(1, 40) * 8, between(1, 40) * 8};
    const ResultShape result{between(1, 4000), between(1, 4000)};
    const int multiprocessors = between(1, 150);
    EXPECT_DOUBLE_EQ(busy_share(tile, result, multiprocessors), counted(tile, result, multiprocessors))
        << tile.rows << " x " << tile.cols << " of " << result.rows << " x " << result.cols;
  }
  EXPECT_EQ(busy_share({128, 256}, {0, 77}, 132), 0);
  EXPECT_EQ(busy_share({128, 128}, {128 * 12, 128 * 11}, 132), 1);
}

// 4096 x 12288 on 132 multiprocessors: 1,536 tiles of 128 x 256 are 11.6 rounds, 1,184 of 256 x 168 are 8.97.
TEST(GemmTiles, TilesThatFillTheLastRoundComeFirst) {
  std::vector<Tile> tiles = {{128, 128}, {128, 256}, {256, 128}, {256, 168}, {192, 192}};
  keep_fitting_tiles(tiles, {.rows = 4096, .cols = 12288}, 132, 3);
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_EQ(tiles[0].rows, 256);
  EXPECT_EQ(tiles[0].cols, 168);
  // Equal tiles keep their order.
  EXPECT_EQ(tiles[1].rows, 128);
  EXPECT_EQ(tiles[1].cols, 256);
  EXPECT_EQ(tiles[2].rows, 256);
  EXPECT_EQ(tiles[2].cols, 128);
}

TEST(GemmTiles, FewerTilesThanAskedForAllStay) {
  std::vector<Tile> tiles = {{128, 128}, {256, 128}};
  keep_fitting_tiles(tiles, {.rows = 100000, .cols = 100000}, 132, 12);
  ASSERT_EQ(tiles.size(), 2u);
  EXPECT_EQ(tiles[0].rows, 256);  // larger, and the last round hardly counts
}

// GEMMs of the same matrices with a different order of sums, rounded to bf16, agree. They disagree if one
// tile of one row is missing, left over or transposed.
TEST(GemmSample, AWrongTileOfARowIsNoticedAndRoundingIsNot) {
  constexpr std::size_t rows = 8, cols = 28672, tile = 168;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> exact(rows * cols);
  for (float& x : exact) x = normal(random);
  const auto rounded = [&](float error) {
    std::vector<float> y;
    for (const float x : exact) y.push_back(from_bf16(to_bf16(x + error * normal(random))));
    return y;
  };
  const std::vector<float> want = rounded(0);
  EXPECT_TRUE(rows_agree(want, rounded(1e-3f), cols));
  EXPECT_TRUE(rows_agree(want, want, cols));
  for (const std::size_t first : {std::size_t{0}, 5 * cols + 77 * tile, rows * cols - tile}) {
    std::vector<float> missing = rounded(1e-3f), stale = missing, nan = missing;
    for (std::size_t i = first; i < first + tile; ++i) {
      missing[i] = 0;
      stale[i] = normal(random);
    }
    nan[first] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(rows_agree(want, missing, cols)) << first;
    EXPECT_FALSE(rows_agree(want, stale, cols)) << first;
    EXPECT_FALSE(rows_agree(want, nan, cols)) << first;
  }
}

TEST(GemmSample, RowsOfZerosAndOfWhatIsNotFinite) {
  const std::vector<float> zeros(6), ones(6, 1.0f);
  std::vector<float> infinite = ones;
  infinite[4] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(rows_agree(zeros, zeros, 3));
  EXPECT_FALSE(rows_agree(zeros, ones, 3));
  EXPECT_FALSE(rows_agree(ones, infinite, 3));
  EXPECT_TRUE(rows_agree(infinite, ones, 3)) << "a row that is not finite says nothing, the other agrees";
  EXPECT_FALSE(rows_agree(ones, std::vector<float>(5, 1.0f), 3));
}

}  // namespace
}  // namespace octet::ops::cuda::gemm_tiles_test
