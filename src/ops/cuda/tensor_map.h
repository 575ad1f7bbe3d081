#pragma once

#include <cuda.h>

#include <cstdint>

namespace octet::ops::cuda {

/// A matrix in the GPU's memory as the copy engine reads it (copy_tile()), in tiles of `tile_rows` rows by
/// 128 bytes, whose 16-byte pieces lie in shared memory as products of a warpgroup read them.
struct TiledMatrix {
  const void* data = nullptr;        ///< on a 16-byte boundary
  std::int64_t rows = 0, bytes = 0;  ///< of a row, a multiple of 16, behind which the next one begins
  int tile_rows = 0;                 ///< at most 256
};
/// A weight in tiles of 64 rows by 128 bytes whose rows are not neighbours: four times eight rows, and behind
/// each eight the eight that stand `second` rows on. Rows are named by byte, 0, 0, group and head.
struct TiledWeight {
  const void* data = nullptr;  ///< on a 16-byte boundary
  std::int64_t bytes = 0;      ///< of a row, a multiple of 16, behind which the next one begins
  std::int64_t second = 0;
  std::int64_t group = 8, groups = 0;  ///< rows from one eight to the next, and how many of a head
  std::int64_t head = 0, heads = 1;    ///< the same of heads
};
/// Throw Error where the driver refuses.
CUtensorMap tensor_map(const TiledMatrix& matrix);
CUtensorMap tensor_map(const TiledWeight& weight);

}  // namespace octet::ops::cuda
