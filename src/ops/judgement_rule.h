// The loss of a judged answer and its slope, for CPU and GPU.
#pragma once

#include "octet/ops/judgement.h"
#include "preference_rule.h"

namespace octet::ops {

/// Returns the number of desirable answers.
OCTET_PREFERENCE_RULE std::int64_t desirable_answers(const JudgementLossArgs& a) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.count; ++i) count += a.desirable[i] != 0 ? 1 : 0;
  return count;
}

/// Returns the factor of the mean token loss of a desirable answer.
OCTET_PREFERENCE_RULE double supervised_factor(const JudgementLossArgs& a, std::int64_t desirable) {
  if (a.rule.supervised == 0 || desirable == 0) return 0;
  const double share = static_cast<double>(a.count) / static_cast<double>(desirable);
  return a.rule.supervised * share * share;
}

/// Adds the loss and the figures of answer i, and writes its slope for row losses of factor 1.
OCTET_PREFERENCE_RULE void add_answer(const JudgementLossArgs& a, std::int64_t i, double supervised) {
  const bool good = a.desirable[i] != 0;
  const double ratio = a.sums[i] - a.references[i];
  const double length = a.answers[i + 1] - a.answers[i];
  const double weight = good ? a.rule.desirable : a.rule.undesirable;
  const double gain = sigmoid_of(a.rule.beta * (good ? ratio - *a.point : *a.point - ratio));
  const double slope = weight * a.rule.beta * gain * (1 - gain);
  const double token_factor = good ? supervised / length : 0.0;
  // The loss of a row is minus its log-probability.
  a.slopes[i] = (good ? slope : -slope) + token_factor;
  *a.loss_sum += weight * (1 - gain) - token_factor * a.sums[i];
  if (a.figures == nullptr) return;
  const double reward = a.rule.beta * ratio;
  const double figures[kJudgementFigures] = {good ? reward : 0.0,
                                             good ? 0.0 : reward,
                                             good ? a.sums[i] : 0.0,
                                             good ? 0.0 : a.sums[i],
                                             good ? 1.0 : 0.0,
                                             good ? 0.0 : 1.0,
                                             length};
  for (int f = 0; f < kJudgementFigures; ++f) a.figures[f] += figures[f];
}

}  // namespace octet::ops
