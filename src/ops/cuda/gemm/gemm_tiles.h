// Selects result tiles of a GEMM that keep the multiprocessors of a GPU busy. Part of every build, so that it
// is tested without a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octet::ops::cuda {

/// Rows and columns of the result that a thread block computes at once.
struct Tile {
  int rows = 0, cols = 0;
};
struct ResultShape {
  std::int64_t rows = 0, cols = 0;
};

/// Returns the share of multiprocessor time that is spent on elements of the result, if each multiprocessor
/// computes one tile at a time. The last tiles leave some multiprocessors idle. Tiles at the edges compute
/// elements outside of the result. 0 for an empty result.
inline double busy_share(const Tile& tile, const ResultShape& result, int multiprocessors) {
  const auto pieces = [](std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; };
  const std::int64_t tiles = pieces(result.rows, tile.rows) * pieces(result.cols, tile.cols);
  const std::int64_t rounds = pieces(tiles, multiprocessors);
  if (rounds == 0) return 0;
  return static_cast<double>(result.rows * result.cols) /
         (static_cast<double>(rounds * multiprocessors) * tile.rows * tile.cols);
}

/// Keeps the `count` most promising tiles, the best first: busy multiprocessors and large tiles. Large tiles
/// fetch each operand less often, and so need less power. The order of equal tiles is kept.
inline void keep_fitting_tiles(std::vector<Tile>& tiles, const ResultShape& result, int multiprocessors,
                               std::size_t count) {
  // Cost of fetching relative to multiplying, in rows or columns of a tile: measured on an H200.
  constexpr double fetching = 12;
  const auto promise = [&](const Tile& t) {
    return busy_share(t, result, multiprocessors) / (1 + fetching * (1.0 / t.rows + 1.0 / t.cols));
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const Tile& a, const Tile& b) { return promise(a) > promise(b); });
  if (tiles.size() > count) tiles.resize(count);
}

}  // namespace octet::ops::cuda
