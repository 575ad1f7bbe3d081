// The loss of judged answers: each answer is desirable or undesirable.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// The loss of an answer (KTO: Ethayarajh et al. 2024, arXiv:2402.01306). a and A are its log-probabilities
/// for the model and for the reference. z is the reference point, which is at least 0 and has no gradient.
/// s(x) = 1 / (1 + exp(-x)). Desirable: desirable (1 - s(beta (a - A - z))). Undesirable: undesirable (1 -
/// s(beta (z - (a - A)))).
struct JudgementRule {
  double beta = 0.1;
  double desirable = 1, undesirable = 1;  ///< weights
  /// Factor of the mean token loss of desirable answers, which is added. The factor of an answer is
  /// supervised (count / d)^2 for d desirable answers in the micro-batch, as in LLaMA-Factory.
  double supervised = 0;
};

/// Sums over answers that judgement_loss() adds.
enum class JudgementFigure {
  reward_desirable,    ///< beta (a - A) of desirable answers
  reward_undesirable,  ///< likewise of undesirable answers
  desirable,           ///< a of desirable answers
  undesirable,         ///< a of undesirable answers
  desirable_count,
  undesirable_count,
  labels  ///< tokens of all answers
};
inline constexpr int kJudgementFigures = 7;

/// Adds the losses of answers to *loss_sum. Writes row_factors: the gradient of this sum for row_loss.
struct JudgementLossArgs {
  JudgementRule rule;
  std::int64_t count = 0;                   ///< of answers
  const std::int32_t* answers = nullptr;    ///< see AnswerSumsArgs; every answer has a row
  const std::int32_t* desirable = nullptr;  ///< [count]: 1, or 0 for undesirable answers
  const double* sums = nullptr;             ///< [count] of answer_sums()
  const double* references = nullptr;       ///< [count] of answer_sums()
  const double* point = nullptr;            ///< z, one number
  double* slopes = nullptr;                 ///< [count], overwritten
  float* row_factors = nullptr;             ///< [rows] or null
  double* loss_sum = nullptr;
  double* figures = nullptr;  ///< [kJudgementFigures] or null
};
void judgement_loss(Stream& stream, const JudgementLossArgs& args);

}  // namespace octet::ops
