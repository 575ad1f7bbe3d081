// Checks that two algorithms gave the same result, except for rounding. Part of every build, so that it is
// tested without a GPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace octet::ops::cuda {

/// Compares rows of `cols` numbers: ‖got - want‖ <= most * ‖want‖ for each row. Rows with a non-finite `want`
/// are ignored. `most` is well above the effect of another summation order (a thousandth in bf16 and FP8),
/// and below the effect of one wrong tile in a row.
inline bool rows_agree(std::span<const float> want, std::span<const float> got, std::size_t cols,
                       double most = 0.04) {
  if (want.size() != got.size()) return false;
  for (std::size_t row = 0; row < want.size(); row += cols) {
    double difference = 0, size = 0;
    for (std::size_t i = row; i < row + cols && i < want.size(); ++i) {
      const auto w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
      difference += d * d;
      size += w * w;
    }
    if (std::isfinite(size) && !(difference <= most * most * size)) return false;
  }
  return true;
}

}  // namespace octet::ops::cuda
