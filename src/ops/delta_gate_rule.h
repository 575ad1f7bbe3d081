// The gates of a delta rule and their derivatives, for CPU and GPU. All are computed in double.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define OCTET_DELTA_RULE __host__ __device__ inline
#else
#define OCTET_DELTA_RULE inline
#endif

namespace octet::ops {

OCTET_DELTA_RULE double delta_sigmoid(double x) {
  return 1.0 / (1.0 + exp(-x));
}

/// softplus(a + dt_bias)
OCTET_DELTA_RULE double delta_softplus(float a, float dt_bias) {
  const double x = static_cast<double>(a) + static_cast<double>(dt_bias);
  return (x > 0 ? x : 0.0) + log1p(exp(-fabs(x)));
}

/// log_decay = -exp(a_log) * softplus(a + dt_bias)
OCTET_DELTA_RULE double delta_decay(float a_log, float a, float dt_bias) {
  return -exp(static_cast<double>(a_log)) * delta_softplus(a, dt_bias);
}

/// The derivative of delta_decay() by a, and by dt_bias. delta_decay() is its own derivative by a_log.
OCTET_DELTA_RULE double delta_decay_slope(float a_log, float a, float dt_bias) {
  return -exp(static_cast<double>(a_log)) *
         delta_sigmoid(static_cast<double>(a) + static_cast<double>(dt_bias));
}

/// The derivative of sigmoid(b) by b.
OCTET_DELTA_RULE double delta_beta_slope(float b) {
  const double s = delta_sigmoid(static_cast<double>(b));
  return s * (1.0 - s);
}

}  // namespace octet::ops
