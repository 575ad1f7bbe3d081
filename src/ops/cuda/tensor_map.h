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
/// Throws Error where the driver refuses.
CUtensorMap tensor_map(const TiledMatrix& matrix);

}  // namespace octet::ops::cuda
