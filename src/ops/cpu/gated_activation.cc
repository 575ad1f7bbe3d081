#include "cpu/activations.h"
#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

/// g * sigmoid(1.702 g) with bounds. See PlainUp for the members about `up`.
struct Clamped {
  static constexpr float k = 1.702f;
  float limit;
  // Comparisons are written so that NaN stays NaN.
  OCTET_INLINE float gate(float g) const { return g > limit ? limit : g; }
  OCTET_INLINE float value(float g) const { return gate(g) * sigmoid(k * gate(g)); }
  OCTET_INLINE void both(float g, float& value, float& slope) const {
    const float x = gate(g), s = sigmoid(k * x);
    value = x * s;
    slope = g > limit ? 0.0f : s * (1.0f + k * x * (1.0f - s));
  }
  OCTET_INLINE float up(float u) const { return 1.0f + (u > limit ? limit : (u < -limit ? -limit : u)); }
  OCTET_INLINE float through(float u, float d) const { return u > limit || u < -limit ? 0.0f : d; }
};

template <typename T, typename A>
OCTET_SIMD void forward_row(const GatedActivationArgs& a, const A& act, RowQuantizer& quantizer,
                            std::int64_t row) {
  const std::int64_t width = a.gate_up.cols / 2;
  const T* gate = row_of<T>(a.gate_up, row);
  const T* up = gate + width;
  float h[kChunk];
  for (std::int64_t c = 0; c < width; c += kChunk) {
    const std::int64_t n = chunk_length(c, width);
    for (std::int64_t i = 0; i < n; ++i) {
      h[i] = simd::rounded_to<T>(act.value(simd::load(gate[c + i])) * act.up(simd::load(up[c + i])));
    }
    if (a.out.data) store(h, row_of<T>(a.out, row) + c, n);
    quantizer.take(h, row, c, n);
  }
  quantizer.finish_row();
}

template <typename T, typename A>
OCTET_SIMD void backward_row(const GatedActivationBackwardArgs& a, const A& act, RowQuantizer& quantizer,
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
      const float d = simd::load(d_out[c + i]), u = simd::load(up[c + i]);
      float value, slope;
      act.both(simd::load(gate[c + i]), value, slope);
      dg[i] = simd::rounded_to<T>(d * act.up(u) * slope);
      du[i] = simd::rounded_to<T>(act.through(u, d * value));
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
void with_activation(Activation activation, float limit, F f) {
  if (activation == Activation::silu) {
    f(Silu{});
  } else if (activation == Activation::gelu_tanh) {
    f(GeluTanh{});
  } else {
    f(Clamped{limit});
  }
}

}  // namespace

void gated_activation(const GatedActivationArgs& a) {
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, a.limit, [&](auto activation) {
      simd::parallel_rows(a.gate_up.rows, 4 * a.gate_up.cols, [&](std::int64_t begin, std::int64_t end) {
        RowQuantizer quantizer(a.quantize, a.gate_up.rows, a.gate_up.cols / 2);
        for (std::int64_t r = begin; r < end; ++r) {
          forward_row<decltype(type)>(a, activation, quantizer, r);
        }
      });
    });
  });
}

void gated_activation_backward(const GatedActivationBackwardArgs& a) {
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, a.limit, [&](auto activation) {
      simd::parallel_rows(a.gate_up.rows, 10 * a.d_out.cols, [&](std::int64_t begin, std::int64_t end) {
        RowQuantizer quantizer(a.quantize, a.gate_up.rows, 2 * a.d_out.cols);
        for (std::int64_t r = begin; r < end; ++r) {
          backward_row<decltype(type)>(a, activation, quantizer, r);
        }
      });
    });
  });
}

}  // namespace octet::ops::cpu
