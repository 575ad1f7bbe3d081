#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Cross-entropy of a chunk of rows. The gradient replaces the logits: logits become softmax(logits) -
/// onehot(target). This is the gradient of the *sum* of losses. The gradient scale of the optimizer divides
/// it by the number of label tokens. A target below 0 gives loss 0 and gradient 0.
struct CrossEntropyArgs {
  Matrix logits;                          ///< [rows, vocabulary] T, in and out
  const std::int32_t* targets = nullptr;  ///< [rows]
  float soft_cap = 0.0f;      ///< nominal logits are soft_cap * tanh(logits / soft_cap); 0: no cap
  bool gradient = true;       ///< false: the logits are unchanged
  float* row_loss = nullptr;  ///< [rows] f32
};
void cross_entropy(Stream& stream, const CrossEntropyArgs& args);

/// x = cap * tanh(x / cap), in place: applies the soft cap of logits. x [rows, cols] T.
void soft_cap(Stream& stream, Matrix x, float cap);

/// *total += Σ values[i], in double, in index order of fixed blocks.
void add_sum(Stream& stream, const float* values, std::int64_t count, double* total);

}  // namespace octet::ops
