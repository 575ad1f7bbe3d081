// The loss of rows of a reward model: a row has one score.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// row_loss[r] = -scores[r], as answer_sums() reads it. With row_factors, the gradient of the sum of losses
/// replaces the scores: scores[r] = -row_factors[r].
struct ScoreRowsArgs {
  Matrix scores;                       ///< [rows, 1] T
  float* row_loss = nullptr;           ///< [rows] or null
  const float* row_factors = nullptr;  ///< [rows] or null
};
void score_rows(Stream& stream, const ScoreRowsArgs& args);

}  // namespace octet::ops
