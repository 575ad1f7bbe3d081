// The body of tile_gemm for one instruction set. The file is included several times, each time inside a
// different namespace. The includer defines OCTET_TILE_TARGET (a function attribute), OCTET_TILE_LANES
// (floats of a vector) and OCTET_TILE_ROWS (rows held in registers, a divisor of tile_rows). target_clones is
// not usable: the compiler lowers vector types before it clones functions, so every clone would have the
// narrow vectors of the default target.

using Vector = float __attribute__((vector_size(OCTET_TILE_LANES * 4), aligned(4), may_alias));

template <int vectors, bool by_columns>
OCTET_TILE_TARGET inline void tile(const TileGemm& p, std::int64_t row, std::int64_t col) {
  constexpr int rows = OCTET_TILE_ROWS;
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  float* c = p.c + row * p.ldc + col;
  Vector sum[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] =
          p.accumulate ? *reinterpret_cast<const Vector*>(c + r * p.ldc + v * OCTET_TILE_LANES) : Vector{};
    }
  }
  for (std::int64_t k = 0; k < p.k; ++k) {
    Vector x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = *reinterpret_cast<const Vector*>(b + v * OCTET_TILE_LANES);
    for (int r = 0; r < rows; ++r) {
      const float y = by_columns ? a[r] : a[r * p.a_row];
      for (int v = 0; v < vectors; ++v) sum[r][v] += y * x[v];
    }
    b += p.ldb;
    a += by_columns ? p.a_col : 1;
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Vector*>(c + r * p.ldc + v * OCTET_TILE_LANES) = sum[r][v];
    }
  }
}

template <bool by_columns>
OCTET_TILE_TARGET inline void multiply_tile(const TileGemm& p) {
  for (std::int64_t row = 0; row < p.m; row += OCTET_TILE_ROWS) {
    std::int64_t col = 0;
    for (; col + 3 * OCTET_TILE_LANES <= p.n && (p.n - col) % (2 * OCTET_TILE_LANES) != 0;
         col += 3 * OCTET_TILE_LANES) {
      tile<3, by_columns>(p, row, col);
    }
    for (; col + 2 * OCTET_TILE_LANES <= p.n; col += 2 * OCTET_TILE_LANES) tile<2, by_columns>(p, row, col);
    for (; col < p.n; col += OCTET_TILE_LANES) tile<1, by_columns>(p, row, col);
  }
}

OCTET_TILE_TARGET void run(const TileGemm& p) {
  if (p.a_row == 1) {
    multiply_tile<true>(p);
  } else {
    multiply_tile<false>(p);
  }
}
