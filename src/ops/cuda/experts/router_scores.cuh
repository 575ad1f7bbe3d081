// Sigmoid scores of a router's logits.
#pragma once

#include <cmath>

namespace octet::ops::cuda {

/// A sigmoid score and its derivative, computed in double and rounded once, as on a CPU.
struct Sigmoid {
  __device__ explicit Sigmoid(float x) {
    const double t = exp(-fabs(static_cast<double>(x)));
    score = static_cast<float>((x < 0.0f ? t : 1.0) / (1.0 + t));
    slope = static_cast<float>(t / ((1.0 + t) * (1.0 + t)));
  }
  float score, slope;
};

}  // namespace octet::ops::cuda
