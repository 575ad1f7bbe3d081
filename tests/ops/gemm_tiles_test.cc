#include "cuda/gemm_tiles.h"

#include <gtest/gtest.h>

#include <random>

namespace octet::ops::cuda {
namespace {

// Counts tile by tile what busy_share computes.
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
  // Equal ones in the order in which they were.
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

}  // namespace
}  // namespace octet::ops::cuda
