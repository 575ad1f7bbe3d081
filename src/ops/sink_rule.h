// The factors of a sink of attention, for CPU and GPU.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define OCTET_SINK_RULE __host__ __device__ inline
#else
#define OCTET_SINK_RULE inline
#endif

namespace octet::ops {

/// sigmoid(lse - sink)
OCTET_SINK_RULE float sink_factor(float sink, float lse) {
  return static_cast<float>(1.0 / (1.0 + exp(static_cast<double>(sink) - static_cast<double>(lse))));
}

/// ln(exp(lse) + exp(sink))
OCTET_SINK_RULE float lse_with_sink(float sink, float lse) {
  const double a = static_cast<double>(sink), b = static_cast<double>(lse);
  return static_cast<float>((a > b ? a : b) + log1p(exp(-fabs(a - b))));
}

/// The weight of the sink in the softmax: exp(sink - lse), with lse of lse_with_sink().
OCTET_SINK_RULE double sink_weight(float sink, float lse) {
  return exp(static_cast<double>(sink) - static_cast<double>(lse));
}

}  // namespace octet::ops
