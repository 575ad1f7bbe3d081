// The activation xIELU (Huang and Schlag 2024, arXiv:2411.13010) and its derivatives, for CPU and GPU.
#pragma once

#ifdef __CUDACC__
#define OCTET_XIELU_RULE __host__ __device__ inline
#else
#include "octet/base/fp8_vector.h"
#define OCTET_XIELU_RULE OCTET_INLINE
#endif

namespace octet::ops {

/// The numbers of an xIELU, with a bend for each sign:
///   x > 0:  p x² + beta x
///   else:   n (exp(min(x, eps)) - 1 - x) + beta x
struct XieluRule {
  float p, n, beta, eps;

  /// (e^x - 1 - x) / x² for x <= 0 near zero, where the difference would cancel: a Taylor series.
  static OCTET_XIELU_RULE float series(float x) {
    float q = 1.0f / 40320.0f;
    q = q * x + 1.0f / 5040.0f;
    q = q * x + 1.0f / 720.0f;
    q = q * x + 1.0f / 120.0f;
    q = q * x + 1.0f / 24.0f;
    q = q * x + 1.0f / 6.0f;
    q = q * x + 0.5f;
    return q;
  }
  /// e^x - 1 - x for x <= 0. `power`: e^x.
  static OCTET_XIELU_RULE float bend(float x, float power) {
    return x > -0.5f ? x * x * series(x) : power - 1.0f - x;
  }
  OCTET_XIELU_RULE float bounded(float x) const { return x < eps ? x : eps; }
  /// The factor of p, and the factor of n. `power`: e^bounded(x).
  static OCTET_XIELU_RULE float of_p(float x) { return x > 0.0f ? x * x : 0.0f; }
  OCTET_XIELU_RULE float of_n(float x, float power) const {
    const float z = bounded(x);
    return x > 0.0f ? 0.0f : bend(z, power) + (z - x);
  }
  OCTET_XIELU_RULE float value(float x, float power) const {
    return x > 0.0f ? p * x * x + beta * x : n * of_n(x, power) + beta * x;
  }
  /// Between eps and 0, exp() has no slope.
  OCTET_XIELU_RULE float slope(float x, float power) const {
    const float below = x > -0.5f ? x + x * x * series(x) : power - 1.0f;
    const float negative = x < eps ? below : -1.0f;
    return x > 0.0f ? 2.0f * p * x + beta : n * negative + beta;
  }
};

}  // namespace octet::ops
