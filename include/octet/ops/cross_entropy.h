#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Cross-entropy of a chunk of rows, with the gradient written over the logits: logits become
/// softmax(logits) - onehot(target), the gradient of the *sum* of losses (the division by the number of label
/// tokens happens once, in the optimizer's gradient scale). A target below 0 gives loss 0 and gradient 0.
struct CrossEntropyArgs {
  Matrix logits;                          ///< [rows, vocabulary] T, in and out
  const std::int32_t* targets = nullptr;  ///< [rows]
  float soft_cap = 0.0f;      ///< logits were to be soft_cap * tanh(logits / soft_cap); 0: as they are
  bool gradient = true;       ///< false: the logits stay as they are
  float* row_loss = nullptr;  ///< [rows] f32
};
void cross_entropy(Stream& stream, const CrossEntropyArgs& args);

/// x = cap * tanh(x / cap), in place: what a cap makes of logits that are to be seen. x [rows, cols] T.
void soft_cap(Stream& stream, Matrix x, float cap);

/// *total += Σ values[i], in double, in index order of fixed blocks.
void add_sum(Stream& stream, const float* values, std::int64_t count, double* total);

}  // namespace octet::ops
