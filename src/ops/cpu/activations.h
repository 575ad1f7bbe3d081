// Activations of MLPs and their derivatives.
#pragma once

#include "cpu/simd.h"

namespace octet::ops::cpu {

OCTET_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + simd::exp(-x));
}

// An activation and its derivative. These activations are g * sigmoid(u(g)). silu has u = g. gelu in its tanh
// form has u = 2 sqrt(2 / pi) (g + 0.044715 g³), because (1 + tanh(z)) / 2 = sigmoid(2 z).

/// The factor `up` of a gated activation, and the gradient of `up` from the gradient of this factor.
struct PlainUp {
  static OCTET_INLINE float up(float u) { return u; }
  static OCTET_INLINE float through(float, float d) { return d; }
};
struct Silu : PlainUp {
  static OCTET_INLINE float value(float g) { return g * sigmoid(g); }
  static OCTET_INLINE void both(float g, float& value, float& slope) {
    const float s = sigmoid(g);
    value = g * s;
    slope = s * (1.0f + g * (1.0f - s));
  }
};
struct GeluTanh : PlainUp {
  static constexpr float k = 1.59576912160573f;  // 2 sqrt(2 / pi)
  static constexpr float k3 = 0.044715f;
  // Beyond 30 the sigmoid is 0 or 1. The bound keeps its argument from overflowing.
  static OCTET_INLINE float bounded(float g) { return g < -30.0f ? -30.0f : (g > 30.0f ? 30.0f : g); }
  static OCTET_INLINE float value(float g) {
    const float z = bounded(g);
    return g * sigmoid(k * (z + k3 * z * z * z));
  }
  static OCTET_INLINE void both(float g, float& value, float& slope) {
    const float z = bounded(g);
    const float s = sigmoid(k * (z + k3 * z * z * z));
    value = g * s;
    slope = s + z * s * (1.0f - s) * (k * (1.0f + 3.0f * k3 * z * z));
  }
};

}  // namespace octet::ops::cpu
