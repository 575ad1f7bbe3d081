#include "cuda/activations.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/tiles.cuh"

namespace octet::ops::cuda {
namespace {

template <typename T, typename A>
struct Forward {
  static constexpr int outputs = 1;
  struct Raw {
    RawPack<T> gate, up;
  };
  GatedActivationArgs a;
  A act;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    const T* gate = row_of<T>(a.gate_up, row) + col;
    raw.gate.load(gate);
    raw.up.load(gate + a.gate_up.cols / 2);
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&h)[1][kPack]) const {
    float g[kPack], up[kPack];
    raw.gate.get(g);
    raw.up.get(up);
    apply(g, up, h[0]);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, h[0], kPack, true);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&h)[1][kPack]) const {
    const T* gate = row_of<T>(a.gate_up, row) + col;
    float g[kPack], up[kPack];
    load_pack(gate, g, at.n, at.whole);
    load_pack(gate + a.gate_up.cols / 2, up, at.n, at.whole);
    apply(g, up, h[0]);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, h[0], at.n, at.whole);
  }
  __device__ void apply(const float (&g)[kPack], const float (&up)[kPack], float (&h)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float value, slope;
      act.both(g[i], value, slope);
      h[i] = value * act.up(up[i]);
    }
    round_pack<T>(h);
  }
};

/// Computes Forward for a row with its own scale.
template <typename T, typename A>
struct ForwardRows {
  Forward<T, A> forward;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&h)[kPack]) const {
    float both[1][kPack];
    forward(row, col, at, both);
#pragma unroll
    for (int i = 0; i < kPack; ++i) h[i] = both[0][i];
  }
};

// Only one thread reads an element, and it does so before it overwrites it. So d_gate_up may be gate_up.
template <typename T, typename A>
struct Backward {
  static constexpr int outputs = 2;
  struct Raw {
    RawPack<T> gate, up, d_out;
  };
  GatedActivationBackwardArgs a;
  A act;
  __device__ std::int64_t column(int j, std::int64_t col) const { return j * a.d_out.cols + col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    const T* gate = row_of<T>(a.gate_up, row) + col;
    raw.gate.load(gate);
    raw.up.load(gate + a.d_out.cols);
    raw.d_out.load(row_of<T>(a.d_out, row) + col);
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&d)[2][kPack]) const {
    float g[kPack], up[kPack], dh[kPack];
    raw.gate.get(g);
    raw.up.get(up);
    raw.d_out.get(dh);
    apply(g, up, dh, d);
    keep(row, col, {.n = kPack, .whole = true}, d);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&d)[2][kPack]) const {
    const T* gate = row_of<T>(a.gate_up, row) + col;
    float g[kPack], up[kPack], dh[kPack];
    load_pack(gate, g, at.n, at.whole);
    load_pack(gate + a.d_out.cols, up, at.n, at.whole);
    load_pack(row_of<T>(a.d_out, row) + col, dh, at.n, at.whole);
    apply(g, up, dh, d);
    keep(row, col, at, d);
  }
  __device__ void apply(const float (&g)[kPack], const float (&up)[kPack], const float (&dh)[kPack],
                        float (&d)[2][kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float value, slope;
      act.both(g[i], value, slope);
      d[0][i] = dh[i] * act.up(up[i]) * slope;
      d[1][i] = act.through(up[i], dh[i] * value);
    }
    round_pack<T>(d[0]);
    round_pack<T>(d[1]);
  }
  __device__ void keep(std::int64_t row, std::int64_t col, PackAt at, const float (&d)[2][kPack]) const {
    if (!a.d_gate_up.data) return;
    T* to = row_of<T>(a.d_gate_up, row) + col;
    store_pack(to, d[0], at.n, at.whole);
    store_pack(to + a.d_out.cols, d[1], at.n, at.whole);
  }
};

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

void gated_activation(Stream& stream, const GatedActivationArgs& a) {
  const std::int64_t rows = a.gate_up.rows, width = a.gate_up.cols / 2;
  // The second half of a row is aligned to packs only if the first half consists of whole packs.
  const bool vector = packs(a.gate_up) && packs(a.out) && width % kPack == 0;
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, a.limit, [&](auto activation) {
      if (a.quantize.row_scale_inv != nullptr) {
        const ForwardRows<decltype(type), decltype(activation)> values{{a, activation}};
        return launch_rows(stream, values, row_copy(a.quantize.row, a.quantize.row_scale_inv, rows, width),
                           vector, "gated_activation");
      }
      launch_tiles(stream, Forward<decltype(type), decltype(activation)>{a, activation},
                   tile_out(a.quantize, rows, width, 1), vector, "gated_activation");
    });
  });
}

void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& a) {
  const std::int64_t rows = a.d_out.rows, width = a.d_out.cols;
  const bool vector = packs(a.gate_up) && packs(a.d_out) && packs(a.d_gate_up) && width % kPack == 0;
  with_type(a.gate_up.dtype, [&](auto type) {
    with_activation(a.activation, a.limit, [&](auto activation) {
      launch_tiles(stream, Backward<decltype(type), decltype(activation)>{a, activation},
                   tile_out(a.quantize, rows, width, 2), vector, "gated_activation_backward");
    });
  });
}

}  // namespace octet::ops::cuda
