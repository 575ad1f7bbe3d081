#include "cuda/rows.cuh"
#include "rounding.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
static_assert(kPack == kNoiseGroup);
/// Elements that a thread block updates at once.
constexpr int kTile = kThreads * kPack;
/// Maximum number of spans of a launch. They are kernel arguments, so there must be few.
constexpr int kSpans = 24;

/// A span in the kernel: tiles [first_tile, first_tile of the next span).
struct Piece {
  std::int64_t begin, count, first, first_tile;
  float* amax;
  std::uint32_t tensor;
  float rate;
  bool decay;
};

struct Update {
  void* master;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  float* exp_avg_scale;
  float* exp_avg_sq_scale;
  void* copy;
  bool copy_f32;
  const StepScalars* scalars;
  double weight_decay;
  float one_minus_beta1, beta2, one_minus_beta2, eps;
  bool vector;     ///< packs of all arrays are aligned
  bool all_whole;  ///< additionally, all spans consist of whole packs
  int pieces;
  std::int64_t tiles;
  Piece piece[kSpans];
};

/// The pack of a thread: its number of elements, and whether it moves as a whole. If all packs of a launch
/// are whole, packs after the end have no elements. Their threads read any valid pack and write nothing.
template <bool all_whole>
struct Lane {
  int n;
  bool whole;
};

/// The noise of a pack.
struct Noise {
  std::array<std::uint32_t, 4> words;
  /// Returns the noise of element i in the lower 16 bits.
  __device__ std::uint32_t source(int i) const { return i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16; }
};

/// Replaces a NaN by a NaN that survives the addition of noise.
__device__ inline float tame(float x) {
  return x != x ? __uint_as_float(0x7FC00000u) : x;
}

/// Storage formats of a state. `load` returns a pack as floats, `store` rounds it. Called by all threads of a
/// warp, including threads after the end. A stored NaN is tame().
struct F32 {
  static constexpr bool exact = true;  ///< bit-exact updates
  template <bool all>
  __device__ static void load(const void* from, const float*, std::int64_t i, float (&x)[kPack],
                              Lane<all> at) {
    load_pack(static_cast<const float*>(from) + i, x, at.n, all || at.whole);
  }
  template <bool all>
  __device__ static void store(void* to, float*, std::int64_t i, float (&x)[kPack], Lane<all> at,
                               const Noise&, Rounded) {
    if (all && !at.whole) return;
    store_pack(static_cast<float*>(to) + i, x, at.n, all || at.whole);
  }
};
struct Half {  // bf16; after store, x holds the stored values
  static constexpr bool exact = false;
  template <bool all>
  __device__ static void load(const void* from, const float*, std::int64_t i, float (&x)[kPack],
                              Lane<all> at) {
    load_pack(static_cast<const __nv_bfloat16*>(from) + i, x, at.n, all || at.whole);
  }
  template <bool all>
  __device__ static void store(void* to, float*, std::int64_t i, float (&x)[kPack], Lane<all> at,
                               const Noise& noise, Rounded what) {
    unsigned word[4];
    // Like bf16_stochastic, with the noise computed in the half word to which it is added.
    const NoiseMap map = noise_map(what);
    const auto rounded = [&](int j) {
      return __float_as_uint(x[j]) + ((noise.source(j) * (map.factor << 16) + (map.offset << 16)) >> 16);
    };
#pragma unroll
    for (int j = 0; j < kPack; j += 2) word[j / 2] = __byte_perm(rounded(j), rounded(j + 1), 0x7632);
#pragma unroll
    for (int j = 0; j < kPack; j += 2) {
      x[j] = low_half(word[j / 2]);
      x[j + 1] = high_half(word[j / 2]);
    }
    auto* out = static_cast<std::uint16_t*>(to) + i;
    if (at.whole) {
      *reinterpret_cast<uint4*>(out) = make_uint4(word[0], word[1], word[2], word[3]);
    } else if constexpr (!all) {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (j < at.n) out[j] = static_cast<std::uint16_t>(word[j / 2] >> (j % 2 * 16));
      }
    }
  }
};
template <bool second>
struct Code {  // one byte per element, and a scale per block of kMomentBlock elements
  static constexpr int kGroup = static_cast<int>(kMomentBlock) / kPack;  // threads that hold a block
  static_assert(kWarp % kGroup == 0);
  __device__ static constexpr MomentFormat format() { return second ? kSecondMoment : kFirstMoment; }
  template <bool all>
  __device__ static void load(const void* from, const float* scales, std::int64_t i, float (&x)[kPack],
                              Lane<all> at) {
    const auto* codes = static_cast<const std::uint8_t*>(from) + i;
    alignas(8) std::uint8_t code[kPack] = {};
    if (all || at.whole) {
      *reinterpret_cast<uint2*>(code) = *reinterpret_cast<const uint2*>(codes);
    } else {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (j < at.n) code[j] = codes[j];
      }
    }
    const float scale = all || at.n > 0 ? scales[i / kMomentBlock] : 0.0f;
#pragma unroll
    for (int j = 0; j < kPack; ++j) x[j] = moment_value(format(), code[j]) * scale;
  }
  template <bool all>
  __device__ static void store(void* to, float* scales, std::int64_t i, float (&x)[kPack], Lane<all> at,
                               const Noise& noise, Rounded what) {
    unsigned most = 0;
    if (!all || at.whole) raise_most(x, all ? kPack : at.n, most);
#pragma unroll
    for (int offset = kGroup / 2; offset > 0; offset /= 2) {
      const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, most, offset);
      most = other > most ? other : most;
    }
    if (at.n == 0) return;
    const std::int32_t exponent = moment_exponent(format(), most);
    const float unscale = moment_unscale(exponent);
    alignas(8) std::uint8_t code[kPack];
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      code[j] = moment_code(format(), x[j] * unscale, noise_of(what, noise.source(j)));
    }
    auto* codes = static_cast<std::uint8_t*>(to) + i;
    if (all || at.whole) {
      *reinterpret_cast<uint2*>(codes) = *reinterpret_cast<const uint2*>(code);
    } else {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (j < at.n) codes[j] = code[j];
      }
    }
    if (i % kMomentBlock == 0) scales[i / kMomentBlock] = moment_scale(exponent);
  }
};

__device__ inline void raise_amax_of_warp(float* amax, unsigned& most) {
  const unsigned all = __reduce_max_sync(0xFFFFFFFFu, most);
  if (threadIdx.x % kWarp == 0 && all > 0) raise_amax(amax, all);
  most = 0;
}

/// x / y rounded to nearest, from the correctly rounded reciprocal of y (Markstein 1990, "Computation of
/// elementary functions on the IBM RISC System/6000 processor", theorem 8). The first quotient is at most one
/// unit off, and its remainder is exact. Requires y in (0, 1], and x zero or far above the subnormal numbers,
/// as roots are.
__device__ inline float divided(float x, float y, float inverse) {
  const float q = x * inverse;
  return __fmaf_rn(__fmaf_rn(-q, y, x), inverse, q);
}

/// decayed - first / (root(v) / root_correction2 + eps), with inverse_root = 1 / root_correction2. fp32
/// masters get the bits of torch.optim.AdamW. bf16 masters are rounded to 8 bits with noise. For them,
/// approximate instructions for roots and reciprocals, accurate to 2^-22, save a third of the kernel's work.
template <bool exact>
__device__ inline float stepped(float decayed, float first, float v, float root_correction2,
                                float inverse_root, float eps) {
  if constexpr (exact) {
    return decayed - __fdiv_rn(first, divided(__fsqrt_rn(v), root_correction2, inverse_root) + eps);
  }
  // If v is flushed to zero, its root is far below eps.
  float root, inverse;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fmaf_rn(root, inverse_root, eps)));
  return __fmaf_rn(-first, inverse, decayed);
}

// The expressions of torch.optim.AdamW, with the same roundings. This file is compiled without contraction.
// all_whole: each pack of each span is whole and aligned.
template <typename Master, typename Grad, typename First, typename Second, bool all_whole>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Update u) {
  const StepScalars s = *u.scalars;
  if (s.skip) return;
  // PyTorch computes these in double and rounds them once, when they are combined with a tensor.
  float rate = 0, step_size = 0, weight_decay = 1;
  const auto take_rate = [&](float of_span) {
    const double lr = static_cast<double>(s.learning_rate) * static_cast<double>(of_span);
    step_size = static_cast<float>(__ddiv_rn(lr, static_cast<double>(s.bias_correction1)));
    weight_decay = static_cast<float>(1.0 - lr * u.weight_decay);
    rate = of_span;
  };
  take_rate(1.0f);
  const float root_correction2 = static_cast<float>(sqrt(static_cast<double>(s.bias_correction2)));
  const float inverse_root = __frcp_rn(root_correction2);
  unsigned most = 0;
  int p = 0;
  for (std::int64_t tile = blockIdx.x; tile < u.tiles; tile += gridDim.x) {
    // Tiles are in order, so the span is this one or a later one. The branch is uniform in the block.
    while (p + 1 < u.pieces && tile >= u.piece[p + 1].first_tile) {
      if (u.piece[p].amax) raise_amax_of_warp(u.piece[p].amax, most);
      ++p;
    }
    const Piece& piece = u.piece[p];
    if (piece.rate != rate) take_rate(piece.rate);
    const std::int64_t inside = (tile - piece.first_tile) * kTile + threadIdx.x * kPack;
    const PackAt pack = pack_at(inside, piece.count, u.vector);
    const Lane<all_whole> at{pack.n < 0 ? 0 : pack.n, pack.whole};
    const std::int64_t i = piece.begin + (all_whole && !at.whole ? 0 : inside);
    const float decay = piece.decay ? weight_decay : 1.0f;
    float w[kPack], g[kPack], m[kPack], v[kPack];
    Master::load(u.master, nullptr, i, w, at);
    Grad::load(u.grad, nullptr, i, g, at);
    First::load(u.exp_avg, u.exp_avg_scale, i, m, at);
    Second::load(u.exp_avg_sq, u.exp_avg_sq_scale, i, v, at);
    bool nan = false;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float gradient = g[j] * s.grad_scale;
      m[j] = m[j] + u.one_minus_beta1 * (gradient - m[j]);
      v[j] = v[j] * u.beta2 + u.one_minus_beta2 * gradient * gradient;
      w[j] =
          stepped<Master::exact>(w[j] * decay, step_size * m[j], v[j], root_correction2, inverse_root, u.eps);
      nan |= w[j] != w[j];  // a NaN moment makes its parameter NaN
    }
    if (nan) {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        m[j] = tame(m[j]);
        v[j] = tame(v[j]);
        w[j] = tame(w[j]);
      }
    }
    const Noise noise{noise_source(s.noise, piece.tensor, (piece.first + inside) / kNoiseGroup)};
    First::store(u.exp_avg, u.exp_avg_scale, i, m, at, noise, Rounded::exp_avg);
    Second::store(u.exp_avg_sq, u.exp_avg_sq_scale, i, v, at, noise, Rounded::exp_avg_sq);
    Master::store(u.master, nullptr, i, w, at, noise, Rounded::master);
    if (all_whole && !at.whole) continue;
    if (u.copy && u.copy_f32) store_pack(static_cast<float*>(u.copy) + i, w, at.n, all_whole || at.whole);
    if (u.copy && !u.copy_f32) {
      store_pack(static_cast<__nv_bfloat16*>(u.copy) + i, w, at.n, all_whole || at.whole);
    }
    if (piece.amax) raise_most(w, all_whole ? kPack : at.n, most);
  }
  if (u.piece[p].amax) raise_amax_of_warp(u.piece[p].amax, most);
}

bool aligned(const void* x) {
  return reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
}

template <typename Master, typename Grad, typename First, typename Second>
void launch(Stream& stream, const Update& u) {
  const auto grid = grid_of(stream, u.tiles, 1);
  cudaStream_t queue = octet::cuda::native(stream);
  if (u.all_whole) {
    adamw_kernel<Master, Grad, First, Second, true><<<grid, kThreads, 0, queue>>>(u);
  } else {
    adamw_kernel<Master, Grad, First, Second, false><<<grid, kThreads, 0, queue>>>(u);
  }
  octet::cuda::check_launch("adamw");
}
template <typename Master, typename Grad>
void launch(Stream& stream, const Update& u, DType moments) {
  if (moments == DType::u8) return launch<Master, Grad, Code<false>, Code<true>>(stream, u);
  if (moments == DType::bf16) return launch<Master, Grad, Half, Half>(stream, u);
  launch<Master, Grad, F32, F32>(stream, u);
}
template <typename Master>
void launch(Stream& stream, const Update& u, DType grad, DType moments) {
  if (grad == DType::bf16) return launch<Master, Half>(stream, u, moments);
  launch<Master, F32>(stream, u, moments);
}

}  // namespace

void adamw(Stream& stream, const AdamWWork& work) {
  const AdamWArgs& a = work.args;
  Update base{};
  base.master = a.master;
  base.grad = a.grad;
  base.exp_avg = a.exp_avg;
  base.exp_avg_sq = a.exp_avg_sq;
  base.exp_avg_scale = a.exp_avg_scale;
  base.exp_avg_sq_scale = a.exp_avg_sq_scale;
  base.copy = a.copy;
  base.copy_f32 = a.copy_dtype == DType::f32;
  base.scalars = a.scalars;
  base.weight_decay = a.weight_decay;
  base.one_minus_beta1 = static_cast<float>(1.0 - a.beta1);
  base.beta2 = static_cast<float>(a.beta2);
  base.one_minus_beta2 = static_cast<float>(1.0 - a.beta2);
  base.eps = static_cast<float>(a.eps);
  base.vector =
      aligned(a.master) && aligned(a.grad) && aligned(a.exp_avg) && aligned(a.exp_avg_sq) && aligned(a.copy);
  base.all_whole = base.vector;
  Update u = base;
  const auto flush = [&] {
    if (u.pieces == 0) return;
    if (a.master_dtype == DType::bf16) {
      launch<Half>(stream, u, a.grad_dtype, a.moment_dtype);
    } else {
      launch<F32>(stream, u, a.grad_dtype, a.moment_dtype);
    }
    u = base;
  };
  for (const AdamWSpan& span : work.spans) {
    if (span.count == 0) continue;
    u.vector = u.vector && span.begin % kPack == 0;
    u.all_whole = u.vector && u.all_whole && span.count % kPack == 0;
    u.piece[u.pieces++] = {.begin = span.begin,
                           .count = span.count,
                           .first = span.first,
                           .first_tile = u.tiles,
                           .amax = a.amax && span.amax_index >= 0 ? a.amax + span.amax_index : nullptr,
                           .tensor = span.tensor,
                           .rate = span.rate,
                           .decay = span.decay};
    u.tiles += ceil_div(span.count, kTile);
    if (u.pieces == kSpans) flush();
  }
  flush();
}

}  // namespace octet::ops::cuda
