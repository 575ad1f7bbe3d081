// The loss of label rows that learn from the distributions of a teacher.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// What happens to the probability of all tokens that a teacher does not list.
/// bucket: both models have one more outcome, "any other token". renormalise: both models are renormalised
/// over the listed tokens. zero: like bucket, but the term of the other tokens is left out.
enum class TeacherRest { bucket, renormalise, zero };

/// The loss of a row is (1 - ratio) times the cross-entropy of its target plus ratio times D(p, q). p is the
/// distribution of the teacher, q the distribution of the model. Both are softmax(logits / temperature). With
/// listed tokens, logits are the log-probabilities of the outcomes.
///
/// D is the generalised Jensen-Shannon divergence (Agarwal et al. 2024, arXiv:2306.13649), with
/// m = beta p + (1 - beta) q: beta KL(p || m) + (1 - beta) KL(q || m). At beta 0 it is KL(p || q), and at
/// beta 1 it is KL(q || p).
struct DistillationRule {
  double ratio = 0.5;      ///< 0 to 1
  double beta = 0;         ///< 0 to 1
  double temperature = 1;  ///< above 0
  TeacherRest rest = TeacherRest::bucket;
};

/// A smaller probability of all other tokens counts as this one, because it is a rounded difference from 1.
inline constexpr double kLeastRest = 1e-9;

/// Sums over label rows, in this order.
enum class DistillationFigure { divergence, cross_entropy, agreement };
inline constexpr int kDistillationFigures = 3;

/// The gradient replaces the logits, like in CrossEntropyArgs. It is the gradient of the *sum* of losses. A
/// row with a target below 0 has loss 0 and gradient 0.
struct DistillationArgs {
  Matrix logits;                          ///< [rows, vocabulary] T, in and out
  const std::int32_t* targets = nullptr;  ///< [rows], below the vocabulary size
  float soft_cap = 0.0f;                  ///< see CrossEntropyArgs
  bool gradient = true;                   ///< false: the logits are unchanged
  DistillationRule rule;
  /// Logits of the teacher for the same rows, after their cap: [rows, vocabulary] T. Without data, the
  /// teacher lists its most probable tokens.
  ConstMatrix teacher = {};
  std::int64_t ranks = 0;  ///< listed tokens of a row, 1 to the vocabulary size
  const std::int32_t* ids =
      nullptr;                      ///< [rows, ranks]: distinct tokens below the vocabulary size, best first
  const float* logprobs = nullptr;  ///< [rows, ranks]: their log-probabilities, finite
  const float* rest = nullptr;      ///< [rows]: the probability of all other tokens
  float* kept = nullptr;            ///< [rows, ranks]: scratch for listed tokens
  float* row_loss = nullptr;        ///< [rows]
  float* row_divergence = nullptr;  ///< [rows]: D
  float* row_cross_entropy = nullptr;  ///< [rows]: loss of the target
  /// [rows]: 1 if no token is more probable for the model than the most probable token of the teacher, else 0
  float* row_agreement = nullptr;
};
/// Throws Error for missing arrays and for parameters outside their ranges.
void distillation(Stream& stream, const DistillationArgs& args);

}  // namespace octet::ops
