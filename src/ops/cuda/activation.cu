#include "octet/ops/activation.h"

#include "cuda/activations.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/scratch.h"
#include "cuda/tiles.cuh"
#include "xielu_rule.h"

namespace octet::ops::cuda {
namespace {

/// Silu and GeluTanh, with the members of XieluAt and their slope.
template <typename A>
struct Plain {
  __device__ A rule() const { return {}; }
  __device__ static float value(const A& act, float x) {
    float value, slope;
    act.both(x, value, slope);
    return value;
  }
  __device__ static float slope(const A& act, float x) {
    float value, slope;
    act.both(x, value, slope);
    return slope;
  }
};

__device__ inline float softplus(float x) {
  return x > 20.0f ? x : static_cast<float>(log1p(exp(static_cast<double>(x))));
}

/// xIELU with its numbers in memory.
struct XieluAt {
  Xielu at;
  __device__ XieluRule rule() const {
    return {
        .p = softplus(*at.alpha_p), .n = *at.beta + softplus(*at.alpha_n), .beta = *at.beta, .eps = *at.eps};
  }
  __device__ static float value(const XieluRule& act, float x) { return act.value(x, expf(act.bounded(x))); }
};

template <typename T, typename A>
struct Alone {
  static constexpr int outputs = 1;
  struct Raw {
    RawPack<T> x;
  };
  ActivationArgs a;
  A act;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    raw.x.load(row_of<T>(a.x, row) + col);
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&h)[1][kPack]) const {
    raw.x.get(h[0]);
    apply(h[0]);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, h[0], kPack, true);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&h)[1][kPack]) const {
    load_pack(row_of<T>(a.x, row) + col, h[0], at.n, at.whole);
    apply(h[0]);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, h[0], at.n, at.whole);
  }
  __device__ void apply(float (&h)[kPack]) const {
    const auto rule = act.rule();
#pragma unroll
    for (int i = 0; i < kPack; ++i) h[i] = A::value(rule, h[i]);
    round_pack<T>(h);
  }
};

/// Computes Alone for a row with its own scale.
template <typename T, typename A>
struct AloneRows {
  Alone<T, A> values;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&h)[kPack]) const {
    float one[1][kPack];
    values(row, col, at, one);
#pragma unroll
    for (int i = 0; i < kPack; ++i) h[i] = one[0][i];
  }
};

// Only one thread reads an element, and it does so before it overwrites it. So d_x may be x.
template <typename T, typename A>
struct AloneBackward {
  static constexpr int outputs = 1;
  struct Raw {
    RawPack<T> x, d_out;
  };
  ActivationBackwardArgs a;
  A act;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    raw.x.load(row_of<T>(a.x, row) + col);
    raw.d_out.load(row_of<T>(a.d_out, row) + col);
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&d)[1][kPack]) const {
    float x[kPack];
    raw.x.get(x);
    raw.d_out.get(d[0]);
    apply(x, d[0]);
    if (a.d_x.data) store_pack(row_of<T>(a.d_x, row) + col, d[0], kPack, true);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&d)[1][kPack]) const {
    float x[kPack];
    load_pack(row_of<T>(a.x, row) + col, x, at.n, at.whole);
    load_pack(row_of<T>(a.d_out, row) + col, d[0], at.n, at.whole);
    apply(x, d[0]);
    if (a.d_x.data) store_pack(row_of<T>(a.d_x, row) + col, d[0], at.n, at.whole);
  }
  __device__ void apply(const float (&x)[kPack], float (&d)[kPack]) const {
    const auto rule = act.rule();
#pragma unroll
    for (int i = 0; i < kPack; ++i) d[i] *= A::slope(rule, x[i]);
    round_pack<T>(d);
  }
};

constexpr int kThreads = 256;

// A block owns `block` rows. It writes the sums of the gradients of p and n to sums[2 * block index]; null:
// not computed.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    xielu_backward_kernel(ActivationBackwardArgs a, std::int64_t block, double* sums, bool vector) {
  __shared__ double shared[kWarp];
  const XieluRule rule = XieluAt{a.xielu}.rule();
  const std::int64_t width = a.x.cols, first = blockIdx.x * block;
  const std::int64_t end = first + block < a.x.rows ? first + block : a.x.rows;
  double of_p = 0, of_n = 0;
  for (std::int64_t row = first; row < end; ++row) {
    float p = 0, n = 0;
    for (std::int64_t col = static_cast<std::int64_t>(threadIdx.x) * kPack; col < width;
         col += kThreads * kPack) {
      const PackAt at = pack_at(col, width, vector);
      float x[kPack], d[kPack];
      load_pack(row_of<T>(a.x, row) + col, x, at.n, at.whole);
      load_pack(row_of<T>(a.d_out, row) + col, d, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float power = expf(rule.bounded(x[i]));
        p += d[i] * rule.of_p(x[i]);
        n += d[i] * rule.of_n(x[i], power);
        d[i] *= rule.slope(x[i], power);
      }
      round_pack<T>(d);
      store_pack(row_of<T>(a.d_x, row) + col, d, at.n, at.whole);
    }
    of_p += static_cast<double>(p);
    of_n += static_cast<double>(n);
  }
  if (!sums) return;
  of_p = block_reduce(of_p, shared, Plus{});
  of_n = block_reduce(of_n, shared, Plus{});
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = of_p;
  sums[2 * blockIdx.x + 1] = of_n;
}

/// Block 0 adds the sums of p, block 1 of n, in an order that depends only on their number.
__global__ void __launch_bounds__(kThreads)
    xielu_sums_kernel(const double* sums, std::int64_t blocks, Xielu of, float* d_alpha_p, float* d_alpha_n) {
  __shared__ double shared[kWarp];
  double sum = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += kThreads) sum += sums[2 * b + blockIdx.x];
  sum = block_reduce(sum, shared, Plus{});
  float* const to = blockIdx.x == 0 ? d_alpha_p : d_alpha_n;
  if (threadIdx.x != 0 || !to) return;
  const double alpha = blockIdx.x == 0 ? *of.alpha_p : *of.alpha_n;
  *to += static_cast<float>(sum / (1.0 + exp(-alpha)));
}

void xielu_backward(Stream& stream, const ActivationBackwardArgs& a) {
  const std::int64_t rows = a.x.rows, width = a.x.cols;
  if (rows == 0 || width == 0) return;
  const bool vector = packs(a.x) && packs(a.d_out) && packs(a.d_x);
  const std::int64_t block = norm_backward_block(rows, width), blocks = ceil_div(rows, block);
  const bool wanted = a.d_alpha_p || a.d_alpha_n;
  auto* const sums = wanted ? static_cast<double*>(a.workspace.data) : nullptr;
  with_type(a.x.dtype, [&](auto type) {
    xielu_backward_kernel<decltype(type)>
        <<<static_cast<unsigned>(blocks), kThreads, 0, octet::cuda::native(stream)>>>(a, block, sums, vector);
  });
  octet::cuda::check_launch("activation_backward");
  if (wanted) {
    xielu_sums_kernel<<<2, kThreads, 0, octet::cuda::native(stream)>>>(sums, blocks, a.xielu, a.d_alpha_p,
                                                                       a.d_alpha_n);
    octet::cuda::check_launch("activation_backward");
  }
  if (a.quantize.row || a.quantize.transposed || a.quantize.amax)
    quantize(stream, QuantizeArgs{a.d_x, a.quantize});
}

template <typename F>
void with_activation(Activation activation, const Xielu& xielu, F f) {
  if (activation == Activation::silu) return f(Plain<Silu>{});
  if (activation == Activation::gelu_tanh) return f(Plain<GeluTanh>{});
  f(XieluAt{xielu});
}

}  // namespace

void activation(Stream& stream, const ActivationArgs& a) {
  const std::int64_t rows = a.x.rows, width = a.x.cols;
  const bool vector = packs(a.x) && packs(a.out);
  with_type(a.x.dtype, [&](auto type) {
    with_activation(a.activation, a.xielu, [&](auto act) {
      const Alone<decltype(type), decltype(act)> values{a, act};
      if (a.quantize.row_scale_inv != nullptr) {
        return launch_rows(stream, AloneRows<decltype(type), decltype(act)>{values},
                           row_copy(a.quantize.row, a.quantize.row_scale_inv, rows, width), vector,
                           "activation");
      }
      launch_tiles(stream, values, tile_out(a.quantize, rows, width, 1), vector, "activation");
    });
  });
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& a) {
  if (a.activation == Activation::xielu) return xielu_backward(stream, a);
  const bool vector = packs(a.x) && packs(a.d_out) && packs(a.d_x);
  const TileOut out = tile_out(a.quantize, a.x.rows, a.x.cols, 1);
  with_type(a.x.dtype, [&](auto type) {
    const auto launch = [&](auto act) {
      launch_tiles(stream, AloneBackward<decltype(type), decltype(act)>{a, act}, out, vector,
                   "activation_backward");
    };
    if (a.activation == Activation::silu) return launch(Plain<Silu>{});
    launch(Plain<GeluTanh>{});
  });
}

}  // namespace octet::ops::cuda
