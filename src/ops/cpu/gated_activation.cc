#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

OCTET_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + simd::exp(-x));
}

// An activation and its derivative. Both activations are g * sigmoid(u(g)). silu has u = g. gelu in its tanh
// form has u = 2 sqrt(2 / pi) (g + 0.044715 g³), because (1 + tanh(z)) / 2 = sigmoid(2 z).
struct Silu {
  static OCTET_INLINE float value(float g) { return g * sigmoid(g); }
  static OCTET_INLINE void both(float g, float& value, float& slope) {
    const float s = sigmoid(g);
    value = g * s;
    slope = s * (1.0f + g * (1.0f - s));
  }
};
struct GeluTanh {
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

template <typename T, typename A>
OCTET_SIMD void forward_row(const GatedActivationArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  const std::int64_t width = a.gate_up.cols / 2;
  const T* gate = row_of<T>(a.gate_up, row);
  const T* up = gate + width;
  float h[kChunk];
  for (std::int64_t c = 0; c < width; c += kChunk) {
    const std::int64_t n = chunk_length(c, width);
    for (std::int64_t i = 0; i < n; ++i) {
      h[i] = simd::rounded_to<T>(A::value(simd::load(gate[c + i])) * simd::load(up[c + i]));
    }
    if (a.out.data) store(h, row_of<T>(a.out, row) + c, n);
    quantizer.take(h, row, c, n);
  }
  quantizer.finish_row();
}

template <typename T, typename A>
OCTET_SIMD void backward_row(const GatedActivationBackwardArgs& a, RowQuantizer& quantizer,
                             std::int64_t row) {
  const std::int64_t width = a.d_out.cols;
  const T* gate = row_of<T>(a.gate_up, row);
  const T* up = gate + width;
  const T* d_out = row_of<T>(a.d_out, row);
  T* d_gate = a.d_gate_up.data ? row_of<T>(a.d_gate_up, row) : nullptr;
  float dg[kChunk];
  float du[kChunk];
  for (std::int64_t c = 0; c < width; c += kChunk) {
    const std::int64_t n = chunk_length(c, width);
    // Writes to buffers first: d_gate_up may alias gate_up.
    for (std::int64_t i = 0; i < n; ++i) {
      const float d = simd::load(d_out[c + i]);
      float value, slope;
      A::both(simd::load(gate[c + i]), value, slope);
      dg[i] = simd::rounded_to<T>(d * simd::load(up[c + i]) * slope);
      du[i] = simd::rounded_to<T>(d * value);
    }
    if (d_gate) {
      store(dg, d_gate + c, n);
      store(du, d_gate + width + c, n);
    }
    quantizer.take(dg, row, c, n);
    quantizer.take(du, row, width + c, n);
  }
  quantizer.finish_row();
}

template <typename F>
void with_activation(Activation activation, F f) {
  if (activation == Activation::silu) {
    f(Silu{});
  } else {
    f(GeluTanh{});
  }
}

}  // namespace

void gated_activation(const GatedActivationArgs& a) {
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, [&](auto activation) {
      simd::parallel_rows(a.gate_up.rows, 4 * a.gate_up.cols, [&](std::int64_t begin, std::int64_t end) {
        RowQuantizer quantizer(a.quantize, a.gate_up.rows, a.gate_up.cols / 2);
        for (std::int64_t r = begin; r < end; ++r) {
          forward_row<decltype(type), decltype(activation)>(a, quantizer, r);
        }
      });
    });
  });
}

void gated_activation_backward(const GatedActivationBackwardArgs& a) {
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, [&](auto activation) {
      simd::parallel_rows(a.gate_up.rows, 10 * a.d_out.cols, [&](std::int64_t begin, std::int64_t end) {
        RowQuantizer quantizer(a.quantize, a.gate_up.rows, 2 * a.d_out.cols);
        for (std::int64_t r = begin; r < end; ++r) {
          backward_row<decltype(type), decltype(activation)>(a, quantizer, r);
        }
      });
    });
  });
}

}  // namespace octet::ops::cpu
