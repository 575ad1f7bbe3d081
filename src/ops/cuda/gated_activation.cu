#include "cuda/tiles.cuh"

namespace octet::ops::cuda {
namespace {

// The fast exponential and division are within a few units of the last place of fp32.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

// An activation and its derivative. Both are g * sigmoid(u(g)): silu with u = g, and gelu in its tanh form
// with u = 2 sqrt(2 / pi) (g + 0.044715 g³), because (1 + tanh(z)) / 2 = sigmoid(2 z).
struct Silu {
  // Beyond 87 the fast division's divisor would leave its range; the sigmoid is 0 or 1 there.
  __device__ static float bounded(float g) { return g < -87.0f ? -87.0f : g; }
  __device__ static void both(float g, float& value, float& slope) {
    const float s = sigmoid(bounded(g));
    value = g * s;
    slope = s * (1.0f + g * (1.0f - s));
  }
};
struct GeluTanh {
  static constexpr float k = 1.59576912160573f;  // 2 sqrt(2 / pi)
  static constexpr float k3 = 0.044715f;
  // Beyond 30 the sigmoid is 0 or 1; its argument must not overflow before, nor the fast division.
  __device__ static float bounded(float g) { return g < -30.0f ? -30.0f : (g > 30.0f ? 30.0f : g); }
  __device__ static void both(float g, float& value, float& slope) {
    const float z = bounded(g);
    const float u = k * (z + k3 * z * z * z);
    const float s = sigmoid(u < -87.0f ? -87.0f : u);
    value = g * s;
    slope = s + z * s * (1.0f - s) * (k * (1.0f + 3.0f * k3 * z * z));
  }
};

template <typename T, typename A>
struct Forward {
  static constexpr int outputs = 1;
  GatedActivationArgs a;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&h)[1][kPack]) const {
    const T* gate = row_of<T>(a.gate_up, row) + col;
    float g[kPack], up[kPack];
    load_pack(gate, g, at.n, at.whole);
    load_pack(gate + a.gate_up.cols / 2, up, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float value, slope;
      A::both(g[i], value, slope);
      h[0][i] = rounded_to<T>(value * up[i]);
    }
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, h[0], at.n, at.whole);
  }
};

// A thread reads what it overwrites before it does, and nobody else reads it: d_gate_up may be gate_up.
template <typename T, typename A>
struct Backward {
  static constexpr int outputs = 2;
  GatedActivationBackwardArgs a;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&d)[2][kPack]) const {
    const std::int64_t width = a.d_out.cols;
    const T* gate = row_of<T>(a.gate_up, row) + col;
    float g[kPack], up[kPack], dh[kPack];
    load_pack(gate, g, at.n, at.whole);
    load_pack(gate + width, up, at.n, at.whole);
    load_pack(row_of<T>(a.d_out, row) + col, dh, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float value, slope;
      A::both(g[i], value, slope);
      d[0][i] = rounded_to<T>(dh[i] * up[i] * slope);
      d[1][i] = rounded_to<T>(dh[i] * value);
    }
    if (!a.d_gate_up.data) return;
    T* to = row_of<T>(a.d_gate_up, row) + col;
    store_pack(to, d[0], at.n, at.whole);
    store_pack(to + width, d[1], at.n, at.whole);
  }
};

template <typename F>
void with_activation(Activation activation, F f) {
  if (activation == Activation::silu) {
    f(Silu{});
  } else {
    f(GeluTanh{});
  }
}

}  // namespace

void gated_activation(Stream& stream, const GatedActivationArgs& a) {
  const std::int64_t rows = a.gate_up.rows, width = a.gate_up.cols / 2;
  // The second half of a row starts on a pack's boundary only if the first is whole packs.
  const bool vector = packs(a.gate_up) && packs(a.out) && width % kPack == 0;
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, [&](auto activation) {
      launch_tiles(stream, Forward<decltype(type), decltype(activation)>{a},
                   tile_out(a.quantize, rows, width, 1), vector, "gated_activation");
    });
  });
}

void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& a) {
  const std::int64_t rows = a.d_out.rows, width = a.d_out.cols;
  const bool vector = packs(a.gate_up) && packs(a.d_out) && packs(a.d_gate_up) && width % kPack == 0;
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, [&](auto activation) {
      launch_tiles(stream, Backward<decltype(type), decltype(activation)>{a},
                   tile_out(a.quantize, rows, width, 2), vector, "gated_activation_backward");
    });
  });
}

}  // namespace octet::ops::cuda
