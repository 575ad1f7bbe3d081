#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Cross-entropy of a chunk of rows. The gradient replaces the logits: logits become softmax(logits) -
/// onehot(target). This is the gradient of the *sum* of losses. The gradient scale of the optimizer divides
/// it by the number of label tokens. A target below 0 gives loss 0 and gradient 0.
///
/// With smoothing e (Szegedy et al. 2016, arXiv:1512.00567), the loss of a row is (1 - e) times the loss of
/// its target plus e times the mean loss of all tokens. Factors of a row are constant for the gradient.
struct CrossEntropyArgs {
  Matrix logits;                          ///< [rows, vocabulary] T, in and out
  const std::int32_t* targets = nullptr;  ///< [rows]
  float soft_cap = 0.0f;      ///< nominal logits are soft_cap * tanh(logits / soft_cap); 0: no cap
  bool gradient = true;       ///< false: the logits are unchanged
  float* row_loss = nullptr;  ///< [rows] f32
  float smoothing = 0.0f;     ///< e, at least 0 and below 1
  /// Multiplies loss and gradient by the probability of the target (DFT: Wu et al. 2025, arXiv:2508.05629).
  bool by_probability = false;
  const float* row_factors = nullptr;  ///< [rows] f32 or null: factors of the gradient
  bool factors_loss = false;           ///< row_factors are factors of the loss, too
  /// [rows] f32 or null: 1 if the target is the most probable token, otherwise 0. The lowest id of equally
  /// probable tokens counts.
  float* row_hits = nullptr;
  /// Whether rows need more than the plain loss of their target.
  bool varies() const {
    return smoothing != 0.0f || by_probability || row_factors != nullptr || row_hits != nullptr;
  }
};
void cross_entropy(Stream& stream, const CrossEntropyArgs& args);

/// The number of logits that row_entropy() reads.
inline constexpr int kEntropyLogits = 20;

/// out[r] = (H / 3)^power. H is the entropy of the softmax of the 20 largest logits of row r, or of all
/// logits of a smaller vocabulary (EAFT: Diao et al. 2026, arXiv:2601.02151).
struct RowEntropyArgs {
  ConstMatrix logits;     ///< [rows, vocabulary] T
  float soft_cap = 0.0f;  ///< see CrossEntropyArgs
  float power = 1.0f;     ///< at least 0
  float* out = nullptr;   ///< [rows] f32
};
void row_entropy(Stream& stream, const RowEntropyArgs& args);

/// x = cap * tanh(x / cap), in place: applies the soft cap of logits. x [rows, cols] T.
void soft_cap(Stream& stream, Matrix x, float cap);

/// *total += Σ values[i], in double, in index order of fixed blocks.
void add_sum(Stream& stream, const float* values, std::int64_t count, double* total);

}  // namespace octet::ops
