// The divergence of a teacher and a model, outcome by outcome, for CPU and GPU.
#pragma once

#include <cmath>

#include "octet/ops/distillation.h"

#ifdef __CUDACC__
#define OCTET_DISTILLATION_RULE __host__ __device__ inline
#else
#define OCTET_DISTILLATION_RULE inline
#endif

namespace octet::ops {

/// The summand D_i of an outcome with probabilities p and q, and q dD/dq.
struct DivergenceTerm {
  double loss = 0;
  double slope = 0;
};

/// Returns ln(beta e^a + (1 - beta) e^b), for beta above 0 and below 1.
OCTET_DISTILLATION_RULE double log_mixture(double beta, double a, double b) {
  const double x = a + log(beta), y = b + log1p(-beta);
  const double most = x > y ? x : y, least = x > y ? y : x;
  return most + log1p(exp(least - most));
}

/// `log_p` and `log_q`: log-probabilities of the outcome for the teacher and for the model.
///
/// With s_i the slopes, the gradient for the logit of outcome i before the temperature T is
/// (s_i - q_i sum of all s) / T, because q is softmax(logits / T).
OCTET_DISTILLATION_RULE DivergenceTerm divergence_term(double beta, double log_p, double log_q) {
  const double p = exp(log_p), q = exp(log_q);
  // A probability that is 0 in double has no term.
  if (beta <= 0) return {p > 0 ? p * (log_p - log_q) : 0.0, -p};
  if (beta >= 1) return {q > 0 ? q * (log_q - log_p) : 0.0, q > 0 ? q * (log_q - log_p + 1) : 0.0};
  const double log_m = log_mixture(beta, log_p, log_q);
  const double of_p = p > 0 ? p * (log_p - log_m) : 0.0, of_q = q > 0 ? q * (log_q - log_m) : 0.0;
  return {beta * of_p + (1 - beta) * of_q, (1 - beta) * of_q};
}

/// Returns the log-probability of all tokens that a teacher does not list.
OCTET_DISTILLATION_RULE double log_rest(float rest) {
  const auto probability = static_cast<double>(rest);
  return log(probability > kLeastRest ? probability : kLeastRest);
}

/// The gradient of a row of listed tokens: nominal logits of other tokens with probability p get p *
/// `others`, listed tokens get p * `cross` + ratio * (their gradient), and the target gets -`cross`.
struct ListedGradient {
  double cross = 0;
  double others = 0;
};
/// `of_rest`: the gradient of the logit of the outcome of all other tokens. `share`: ln of their probability
/// for the model.
OCTET_DISTILLATION_RULE ListedGradient listed_gradient(double ratio, double of_rest, double share) {
  const double cross = 1 - ratio;
  // of_rest has the factor e^share, unless it is 0.
  const double inverse = exp(-share < 700 ? -share : 700.0);
  return {cross, cross + ratio * of_rest * inverse};
}

}  // namespace octet::ops
