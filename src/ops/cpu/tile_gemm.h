// Small fp32 GEMMs for attention: blocks that are in the cache, without packing and without calls.
#pragma once

#include <cstdint>

namespace octet::ops::cpu {

/// The columns of C and B are multiples of tile_cols; the rows of A and C are multiples of tile_rows.
constexpr std::int64_t tile_cols = 16;
constexpr std::int64_t tile_rows = 8;

/// C [m, n] = (or +=) A [m, k] · B [k, n]. Element (r, c) of A is at a[r * a_row + c * a_col]; one of the two
/// strides is 1. B and C are row-major. m is a multiple of tile_rows, n of tile_cols. Each element of C is
/// one chain of fused multiply-adds in the order of k.
struct TileGemm {
  const float* a = nullptr;
  std::int64_t a_row = 0;
  std::int64_t a_col = 0;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool accumulate = false;
};
void tile_gemm(const TileGemm& tile);

}  // namespace octet::ops::cpu
