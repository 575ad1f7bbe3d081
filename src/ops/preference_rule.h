// The loss of a pair of answers and its slopes, for CPU and GPU.
#pragma once

#include <cmath>

#include "octet/ops/preference.h"

#ifdef __CUDACC__
#define OCTET_PREFERENCE_RULE __host__ __device__ inline
#else
#define OCTET_PREFERENCE_RULE inline
#endif

namespace octet::ops {

/// The inputs of the loss of a pair, named as in PreferenceKind.
struct PairScores {
  double chosen = 0, rejected = 0;                      ///< c and r
  double chosen_reference = 0, rejected_reference = 0;  ///< C and R; 0 without references
  double chosen_shift = 0, rejected_shift = 0;          ///< z_c and z_r
};

/// The loss of a pair, and its slopes for c and r.
struct PairLoss {
  double loss = 0, d_chosen = 0, d_rejected = 0;
  double odds_loss = 0;
};

OCTET_PREFERENCE_RULE double sigmoid_of(double x) {
  return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
/// Returns -ln s(x).
OCTET_PREFERENCE_RULE double minus_log_sigmoid(double x) {
  return log1p(exp(-fabs(x))) + (x < 0 ? -x : 0.0);
}
/// Returns 1 - e^x for a mean log-probability x. A probability of 1 would have infinite odds.
OCTET_PREFERENCE_RULE double improbability(double x) {
  return -expm1(x < -1e-9 ? x : -1e-9);
}

OCTET_PREFERENCE_RULE PairLoss sigmoid_loss(const PreferenceRule& rule, double margin) {
  const double h = rule.beta * margin, e = rule.smoothing;
  const double slope = rule.beta * (-(1 - e) * sigmoid_of(-h) + e * sigmoid_of(h));
  return {(1 - e) * minus_log_sigmoid(h) + e * minus_log_sigmoid(-h), slope, -slope};
}

OCTET_PREFERENCE_RULE PairLoss kto_loss(const PreferenceRule& rule, const PairScores& s) {
  const double up = sigmoid_of(rule.beta * (s.chosen - s.chosen_reference - s.rejected_shift));
  const double down = sigmoid_of(rule.beta * (s.chosen_shift - (s.rejected - s.rejected_reference)));
  return {0.5 * ((1 - up) + (1 - down)), -0.5 * rule.beta * up * (1 - up),
          0.5 * rule.beta * down * (1 - down)};
}

OCTET_PREFERENCE_RULE PairLoss odds_loss(const PreferenceRule& rule, const PairScores& s) {
  const double not_c = improbability(s.chosen), not_r = improbability(s.rejected);
  const double odds = (s.chosen - s.rejected) - (log(not_c) - log(not_r));
  const double loss = minus_log_sigmoid(odds), slope = -rule.beta * sigmoid_of(-odds);
  return {-s.chosen + rule.beta * loss, -1 + slope / not_c, -slope / not_r, loss};
}

/// Returns the loss without PreferenceRule::supervised.
OCTET_PREFERENCE_RULE PairLoss loss_of_pair(const PreferenceRule& rule, const PairScores& s) {
  const double margin = (s.chosen - s.chosen_reference) - (s.rejected - s.rejected_reference);
  switch (rule.kind) {
    case PreferenceKind::sigmoid:
      return sigmoid_loss(rule, margin);
    case PreferenceKind::hinge: {
      const double left = 1 - rule.beta * margin, slope = left > 0 ? -rule.beta : 0.0;
      return {left > 0 ? left : 0.0, slope, -slope};
    }
    case PreferenceKind::ipo: {
      const double off = margin - 1 / (2 * rule.beta);
      return {off * off, 2 * off, -2 * off};
    }
    case PreferenceKind::kto_pair:
      return kto_loss(rule, s);
    case PreferenceKind::orpo:
      return odds_loss(rule, s);
    case PreferenceKind::simpo: {
      const double x = rule.beta * (s.chosen - s.rejected) - rule.margin;
      const double slope = -rule.beta * sigmoid_of(-x);
      return {minus_log_sigmoid(x), slope, -slope};
    }
    case PreferenceKind::bradley_terry: {
      const double slope = -sigmoid_of(s.rejected - s.chosen);
      return {minus_log_sigmoid(s.chosen - s.rejected), slope, -slope};
    }
  }
  return {};
}

/// Returns the scores of pair p. `shifts`: z_c and z_r.
OCTET_PREFERENCE_RULE PairScores scores_of(const PreferenceLossArgs& a, std::int64_t p,
                                           const double* shifts) {
  const double c = a.rule.averages() ? a.answers[2 * p + 1] - a.answers[2 * p] : 1;
  const double r = a.rule.averages() ? a.answers[2 * p + 2] - a.answers[2 * p + 1] : 1;
  const bool reads = a.rule.reads_references();
  return {a.sums[2 * p] / c,
          a.sums[2 * p + 1] / r,
          reads ? a.references[2 * p] / c : 0.0,
          reads ? a.references[2 * p + 1] / r : 0.0,
          shifts[0],
          shifts[1]};
}

/// Writes z_c and z_r of the micro-batch.
OCTET_PREFERENCE_RULE void make_shifts(const PreferenceLossArgs& a, double* shifts) {
  shifts[0] = shifts[1] = 0;
  if (a.rule.kind != PreferenceKind::kto_pair || a.pairs == 0) return;
  const double none[2] = {0, 0};
  for (std::int64_t p = 0; p < a.pairs; ++p) {
    const PairScores s = scores_of(a, p, none);
    shifts[0] += s.chosen - s.chosen_reference;
    shifts[1] += s.rejected - s.rejected_reference;
  }
  for (int i = 0; i < 2; ++i) {
    const double mean = shifts[i] / static_cast<double>(a.pairs);
    shifts[i] = mean > 0 ? mean : 0.0;
  }
}

/// Adds the loss and the figures of pair p, and writes its slopes for row losses of factor 1.
OCTET_PREFERENCE_RULE void add_pair(const PreferenceLossArgs& a, std::int64_t p, const double* shifts) {
  const PairScores s = scores_of(a, p, shifts);
  PairLoss pair = loss_of_pair(a.rule, s);
  const double chosen_length = a.answers[2 * p + 1] - a.answers[2 * p];
  const double rejected_length = a.answers[2 * p + 2] - a.answers[2 * p + 1];
  const bool averages = a.rule.averages();
  const double chosen_loss = -(averages ? s.chosen : s.chosen / chosen_length);
  pair.loss += a.rule.supervised * chosen_loss;
  pair.d_chosen -= a.rule.supervised / (averages ? 1.0 : chosen_length);
  // The loss of a row is minus its log-probability.
  a.slopes[2 * p] = -pair.d_chosen / (averages ? chosen_length : 1.0);
  a.slopes[2 * p + 1] = -pair.d_rejected / (averages ? rejected_length : 1.0);
  *a.loss_sum += pair.loss;
  if (a.figures == nullptr) return;
  const double up = a.rule.beta * (s.chosen - s.chosen_reference);
  const double down = a.rule.beta * (s.rejected - s.rejected_reference);
  const double figures[kPreferenceFigures] = {
      up,          down,           up > down ? 1.0 : 0.0,           s.chosen, s.rejected,
      chosen_loss, pair.odds_loss, chosen_length + rejected_length, 1};
  for (int i = 0; i < kPreferenceFigures; ++i) a.figures[i] += figures[i];
}

/// Returns the number of rows of answer `answer` within the length of the shorter answer of its pair.
OCTET_PREFERENCE_RULE std::int64_t common_rows(const std::int32_t* answers, std::int64_t answer) {
  const std::int64_t first = answer / 2 * 2;
  const std::int64_t chosen = answers[first + 1] - answers[first];
  const std::int64_t rejected = answers[first + 2] - answers[first + 1];
  return chosen < rejected ? chosen : rejected;
}

}  // namespace octet::ops
