#pragma once

#include <cuda.h>

#include <cstdint>

namespace octet::ops::cuda {

/// A matrix in GPU memory, read by the copy engine (copy_tile()) in tiles of `tile_rows` rows by 128 bytes.
/// The 16-byte pieces of a tile are stored in shared memory in the layout of warpgroup operands.
struct TiledMatrix {
  const void* data = nullptr;        ///< aligned to 16 bytes
  std::int64_t rows = 0, bytes = 0;  ///< bytes of a row, a multiple of 16, which is also the row pitch
  int tile_rows = 0;                 ///< at most 256
};
/// A weight in tiles of 64 rows by 128 bytes. A tile consists of four pairs of eight rows. The second eight
/// rows of a pair start `second` rows after the first. Coordinates are byte, 0, 0, group and head.
struct TiledWeight {
  const void* data = nullptr;  ///< aligned to 16 bytes
  std::int64_t bytes = 0;      ///< bytes of a row, a multiple of 16, which is also the row pitch
  std::int64_t second = 0;
  std::int64_t group = 8, groups = 0;  ///< rows between two first eights, and their number per head
  std::int64_t head = 0, heads = 1;    ///< rows between two heads, and the number of heads
};
/// Create a copy-engine descriptor. Throw Error if the driver refuses.
CUtensorMap tensor_map(const TiledMatrix& matrix);
CUtensorMap tensor_map(const TiledWeight& weight);

}  // namespace octet::ops::cuda
