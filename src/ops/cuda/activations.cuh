// Activations of a gated MLP and their derivatives, for kernels.
#pragma once

#include <cuda_runtime.h>

namespace octet::ops::cuda {

// Uses the approximate instructions for exponentials and reciprocals. They are accurate to a few units in the
// last place of fp32. Values that they flush to zero are far below the 1 that is added.
__device__ inline float sigmoid(float x) {
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
  return s;
}

// An activation and its derivative, with the members of the CPU side (cpu/activations.h). All are
// g * sigmoid(u(g)): silu with u = g, gelu in its tanh form with u = 2 sqrt(2 / pi) (g + 0.044715 g³),
// because (1 + tanh(z)) / 2 = sigmoid(2 z), and clamped with u = 1.702 g.
struct PlainUp {
  __device__ static float up(float u) { return u; }
  __device__ static float through(float, float d) { return d; }
};
struct Silu : PlainUp {
  // Below -87, the divisor of the fast division would be out of range; the sigmoid is 0 there.
  __device__ static float bounded(float g) { return g < -87.0f ? -87.0f : g; }
  __device__ static void both(float g, float& value, float& slope) {
    const float s = sigmoid(bounded(g));
    value = g * s;
    slope = s * __fmaf_rn(g, 1.0f - s, 1.0f);
  }
};
struct GeluTanh : PlainUp {
  static constexpr float k = 1.59576912160573f;  // 2 sqrt(2 / pi)
  static constexpr float k3 = 0.044715f;
  // Beyond 30, the sigmoid is 0 or 1. Its argument, and the fast division, must not overflow.
  __device__ static float bounded(float g) { return g < -30.0f ? -30.0f : (g > 30.0f ? 30.0f : g); }
  __device__ static void both(float g, float& value, float& slope) {
    const float z = bounded(g);
    const float u = k * (z + k3 * z * z * z);
    const float s = sigmoid(u < -87.0f ? -87.0f : u);
    value = g * s;
    slope = s + z * s * (1.0f - s) * (k * (1.0f + 3.0f * k3 * z * z));
  }
};
struct Clamped {
  static constexpr float k = 1.702f;
  float limit;
  __device__ void both(float g, float& value, float& slope) const {
    const float x = g > limit ? limit : g;  // keeps NaN
    const float s = sigmoid(k * x < -87.0f ? -87.0f : k * x);
    value = x * s;
    slope = g > limit ? 0.0f : s * __fmaf_rn(k * x, 1.0f - s, 1.0f);
  }
  __device__ float up(float u) const { return 1.0f + (u > limit ? limit : (u < -limit ? -limit : u)); }
  __device__ float through(float u, float d) const { return u > limit || u < -limit ? 0.0f : d; }
};

}  // namespace octet::ops::cuda
