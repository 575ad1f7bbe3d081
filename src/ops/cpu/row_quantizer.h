// The FP8 copy of an op's output, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/rows.h"
#include "octet/ops/types.h"

namespace octet::ops::cpu {

/// Writes the FP8 copy of an op's output. take() receives each chunk of a row, rounded to T, once.
/// finish_row() raises the amax and adds the counts. With a scale per row, it keeps the row until
/// finish_row(). One object serves one thread.
class RowQuantizer {
 public:
  RowQuantizer(const QuantizeInto& into, std::int64_t rows, std::int64_t cols)
      : into_(into),
        rows_(rows),
        cols_(cols),
        scale_(into.scale ? *into.scale : 1.0f),
        wanted_(into.wanted() || into.seen || into.row_scale_inv) {
    if (into.row_scale_inv) values_.resize(static_cast<std::size_t>(cols));
  }

  /// Takes n <= kChunk elements of a row, from column `col` on.
  OCTET_INLINE void take(const float* y, std::int64_t row, std::int64_t col, std::int64_t n) {
    if (wanted_) take_chunk(*this, y, row, col, n);
  }
  OCTET_INLINE void finish_row() {
    if (wanted_) finish(*this);
  }

 private:
  // Compiled once for each processor level, not inlined into each op.
  static void take_chunk(RowQuantizer& self, const float* y, std::int64_t row, std::int64_t col,
                         std::int64_t n);
  static void finish(RowQuantizer& self);

  const QuantizeInto& into_;
  std::int64_t rows_;
  std::int64_t cols_;
  float scale_;
  bool wanted_;
  std::uint32_t most_ = 0;
  CastCounts counts_;
  std::vector<float> values_;  ///< of the current row, if its scale is computed last
  std::int64_t row_ = 0;
};

}  // namespace octet::ops::cpu
