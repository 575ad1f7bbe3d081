#include <algorithm>

#include "cuda/rows.cuh"
#include "rounding.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 128;  // elements summed in double before an exact addition
constexpr int kSumLane = 8;  // of them, those that are summed in index order

// --- exact sums of squares -------------------------------------------------------------------------------

__device__ inline void add_limb(std::int64_t* limb, std::uint64_t value) {
  if (value) atomicAdd(reinterpret_cast<unsigned long long*>(limb), static_cast<unsigned long long>(value));
}

// s = m * 2^e as the CPU side adds it: m shifted to a limb boundary is three pieces of 32 bits. `limb`: -1 of
// zero, kExactLimbs of what is not finite.
struct Pieces {
  int limb;
  std::uint32_t piece[3];
};
__device__ inline Pieces pieces_of(double s) {
  if (s == 0) return {-1, {}};
  if (!isfinite(s)) return {kExactLimbs, {}};
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(s));
  // Never subnormal: the square of the smallest float is 2^-298.
  const int exponent = static_cast<int>(bits >> 52) - 1022;
  const std::uint64_t mantissa = (bits & ((1ull << 52) - 1)) | (1ull << 52);
  const int position = exponent - 53 + 512;
  const int shift = position % 32;
  const std::uint64_t low = mantissa << shift;
  const std::uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  return {position / 32,
          {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
           static_cast<std::uint32_t>(high)}};
}

/// Adds what the lanes of a warp hold, all of which call it. Lanes with the same limbs are summed first:
/// 64-bit additions to shared memory are a loop, in which lanes would wait for each other.
__device__ inline void add_exactly(double s, std::int64_t* limbs) {
  const unsigned lane = threadIdx.x % kWarp;
  const Pieces mine = pieces_of(s);
  unsigned left = __ballot_sync(0xFFFFFFFFu, mine.limb >= 0);
  while (left != 0) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const int limb = __shfl_sync(0xFFFFFFFFu, mine.limb, leader);
    const bool same = mine.limb == limb;
    left &= ~__ballot_sync(0xFFFFFFFFu, same);
    if (limb == kExactLimbs) {
      if (lane == 0) atomicOr(reinterpret_cast<unsigned long long*>(limbs + kExactLimbs), 1ull);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const std::uint32_t piece = same ? mine.piece[i] : 0;
      const std::uint64_t low = __reduce_add_sync(0xFFFFFFFFu, piece & 0xFFFFu);
      const std::uint64_t high = __reduce_add_sync(0xFFFFFFFFu, piece >> 16);
      if (lane == 0) add_limb(limbs + limb + i, low + (high << 16));
    }
  }
}

// A warp takes 32 blocks of 128 elements at a time: in each of 16 rounds, each half of it takes a block, a
// lane a group of eight. The 16 lanes' sums of 16 blocks then change hands until each lane holds one block's
// sum.
constexpr int kSumWarps = 4;
constexpr int kRounds = 16;
constexpr int kRoundsAhead = 4;  ///< whose loads are under way together
constexpr std::int64_t kSumGroup = std::int64_t{kRounds} * kWarp * kPack;
static_assert(kPack == kSumLane && kSumGroup % kBlock == 0 && kRounds * kSumLane == kBlock);

/// Adds the squares of a pack, in order. Squares of floats are exact in double, so that a fused addition
/// rounds as a separate one does.
__device__ inline void add_squares(const RawPack<float>& raw, double& sum, unsigned&) {
  float x[kPack];
  raw.get(x);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const double v = static_cast<double>(x[j]);
    sum = __fma_rn(v, v, sum);
  }
}
/// bf16 become doubles in two instructions instead of one slow one: their bits, three places down, are those
/// of 2^-896 times their magnitude, subnormal ones included. Infinities and NaNs would become numbers:
/// `most` shows them.
__device__ inline void add_squares(const RawPack<__nv_bfloat16>& raw, double& sum, unsigned& most) {
  const unsigned four[4] = {raw.word[0].x, raw.word[0].y, raw.word[0].z, raw.word[0].w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned both = four[j] & 0x7FFF7FFFu;
    most = __vmaxu2(most, both);
    const double low = __hiloint2double(static_cast<int>((both & 0xFFFFu) << 13), 0) * 0x1p896;
    sum = __fma_rn(low, low, sum);
    const double high = __hiloint2double(static_cast<int>((both >> 16) << 13), 0) * 0x1p896;
    sum = __fma_rn(high, high, sum);
  }
}

/// Lanes that are `apart` add theirs; each keeps half of the blocks that it still holds.
template <int apart>
__device__ inline void exchange(double (&sums)[kRounds]) {
  const bool upper = threadIdx.x & static_cast<unsigned>(apart);
#pragma unroll
  for (int r = 0; r < apart; ++r) {
    const double kept = upper ? sums[r + apart] : sums[r], given = upper ? sums[r] : sums[r + apart];
    sums[r] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, apart);
  }
}

/// The sum of one of a warp's 32 blocks, another one for each lane; x begins on a pack's boundary and has all
/// of them. `finite`: false when the warp has met what is not finite, and the sums are wrong.
template <typename T>
__device__ inline double sum_of_lane(const T* x, bool& finite) {
  const unsigned lane = threadIdx.x % kWarp;
  double sums[kRounds];
  unsigned most = 0;
#pragma unroll
  for (int first = 0; first < kRounds; first += kRoundsAhead) {
    RawPack<T> raw[kRoundsAhead];
#pragma unroll
    for (int r = 0; r < kRoundsAhead; ++r) raw[r].load(x + ((first + r) * kWarp + lane) * kPack);
#pragma unroll
    for (int r = 0; r < kRoundsAhead; ++r) {
      sums[first + r] = 0;
      add_squares(raw[r], sums[first + r], most);
    }
  }
  finite = !__any_sync(0xFFFFFFFFu, (most & 0xFFFFu) >= 0x7F80u || most >= 0x7F800000u);
  exchange<8>(sums);
  exchange<4>(sums);
  exchange<2>(sums);
  exchange<1>(sums);
  return sums[0];
}

/// The same for any x, of which `count` elements are there: adds the sums itself.
template <typename T>
__device__ inline void add_any_blocks(const T* x, std::int64_t count, std::int64_t* limbs) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int r = 0; r < kRounds; ++r) {
    double sum = 0;
    for (int j = 0; j < kPack; ++j) {
      const std::int64_t i = static_cast<std::int64_t>(r * kWarp + lane) * kPack + j;
      const double v = i < count ? static_cast<double>(to_float(x[i])) : 0.0;
      sum += v * v;
    }
#pragma unroll
    for (int apart = kRounds / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
    add_exactly(lane % kRounds == 0 ? sum : 0.0, limbs);
  }
}

/// vector: x begins on a pack's boundary.
template <typename T>
__global__ void __launch_bounds__(kSumWarps* kWarp) square_sum_kernel(SquareSumArgs a, bool vector) {
  __shared__ std::int64_t limbs[kExactLimbs + 1];
  for (int i = threadIdx.x; i <= kExactLimbs; i += blockDim.x) limbs[i] = 0;
  __syncthreads();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kSumWarps * kSumGroup;
  const std::int64_t first =
      (blockIdx.x * static_cast<std::int64_t>(kSumWarps) + threadIdx.x / kWarp) * kSumGroup;
  for (std::int64_t begin = first; begin < a.count; begin += stride) {
    const T* x = static_cast<const T*>(a.x) + begin;
    const std::int64_t left = a.count - begin;
    if (vector && left >= kSumGroup) {
      bool finite = true;
      const double sum = sum_of_lane(x, finite);
      if (finite) {
        add_exactly(sum, limbs);
        continue;
      }
    }
    add_any_blocks(x, left, limbs);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kExactLimbs; i += blockDim.x) {
    add_limb(a.limbs + i, static_cast<std::uint64_t>(limbs[i]));
  }
  if (threadIdx.x == 0 && limbs[kExactLimbs]) {
    atomicOr(reinterpret_cast<unsigned long long*>(a.limbs + kExactLimbs), 1ull);
  }
}

// The sum of three digits of 32 bits, of which the lowest may be sticky, rounded once to a double.
__device__ double to_double(std::uint32_t high, std::uint32_t middle, std::uint32_t low) {
  if (high == 0) return 0;
  // The leading 64 bits and whether anything is below them.
  const int zeros = __clz(static_cast<int>(high));
  const std::uint64_t first = (static_cast<std::uint64_t>(high) << 32) | middle;
  std::uint64_t leading = first;
  std::uint32_t rest = low;
  if (zeros > 0) {
    leading = (first << zeros) | (low >> (32 - zeros));
    rest = low << zeros;
  }
  // A sticky bit below bit 10, the half of the last place of 53 bits, decides ties.
  if (rest != 0) leading |= 1;
  return ldexp(__ull2double_rn(leading), 32 - zeros);
}

__global__ void finish_norm_kernel(FinishNormArgs a) {
  StepScalars& s = *a.scalars;
  s.grad_norm = 0.0f;
  s.grad_scale = 0.0f;
  s.skip = 1;
  if (!(s.label_tokens > 0)) return;
  if (a.limbs[kExactLimbs] != 0) {
    s.grad_norm = __int_as_float(0x7FC00000);
    return;
  }
  // Carry, so that each digit has 32 bits; what leaves the last limb becomes two more.
  std::uint32_t digits[kExactLimbs + 2];
  std::uint64_t carry = 0;
  int top = -1;
  for (int i = 0; i < kExactLimbs + 2; ++i) {
    const std::uint64_t limb = i < kExactLimbs ? static_cast<std::uint64_t>(a.limbs[i]) : 0;
    const std::uint64_t value = carry + limb;
    digits[i] = static_cast<std::uint32_t>(value);
    carry = (value >> 32) | (value < carry ? 1ull << 32 : 0ull);
    if (digits[i] != 0) top = i;
  }
  double sum = 0;
  if (top >= 0) {
    std::uint32_t low = top >= 2 ? digits[top - 2] : 0u;
    for (int i = top - 3; i >= 0; --i) low |= digits[i] != 0 ? 1u : 0u;
    sum = ldexp(to_double(digits[top], top >= 1 ? digits[top - 1] : 0u, low), 32 * (top - 2) - 512);
  }
  s.grad_norm = static_cast<float>(__ddiv_rn(sqrt(sum), s.label_tokens));
  if (!isfinite(s.grad_norm)) return;
  float clip = 1.0f;
  if (s.max_grad_norm > 0) clip = fminf(1.0f, __fdiv_rn(s.max_grad_norm, s.grad_norm + 1e-6f));
  s.grad_scale = static_cast<float>(__ddiv_rn(static_cast<double>(clip), s.label_tokens));
  s.skip = 0;
}

// --- AdamW -------------------------------------------------------------------------------------------------

static_assert(kPack == kNoiseGroup);
/// Elements that a block of threads updates at once.
constexpr int kTile = kThreads * kPack;
/// Spans that one launch takes; as arguments of a kernel they must be few.
constexpr int kSpans = 24;

/// A span as the kernel walks over it: tiles [first_tile, first_tile of the next one).
struct Piece {
  std::int64_t begin, count, first, first_tile;
  float* amax;
  std::uint32_t tensor;
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
  bool vector;     ///< packs of all arrays start on their boundaries
  bool all_whole;  ///< and all spans are whole packs
  int pieces;
  std::int64_t tiles;
  Piece piece[kSpans];
};

/// A thread's pack: how many elements it has, and whether it moves as a whole. Of a launch all of whose packs
/// are whole, those past the end have none; they read any pack and write nothing.
template <bool all_whole>
struct Lane {
  int n;
  bool whole;
};

/// The noise of a pack, by element.
struct Noise {
  std::array<std::uint32_t, 4> words;
  /// Of element i, in the lower 16 bits of what is returned.
  __device__ std::uint32_t source(int i) const { return i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16; }
};

/// A NaN to which noise may be added: it stays one.
__device__ inline float tame(float x) {
  return x != x ? __uint_as_float(0x7FC00000u) : x;
}

/// A storage format of one state: load gives a pack as floats, store rounds it. All threads of a warp call
/// them together, those past the end too. A NaN that is stored is tame().
struct F32 {
  static constexpr bool exact = true;  ///< updates to the last bit
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
struct Half {  // bf16; what is left in x is what was stored
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
    // As bf16_stochastic, the noise made in the half of a word from which it is added.
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
struct Code {  // a byte, and a scale for each block of kMomentBlock
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

/// x / y rounded to nearest, from the nearest reciprocal of y (Markstein 1990, "Computation of elementary
/// functions on the IBM RISC System/6000 processor", theorem 8): the first quotient is a unit off at most,
/// and its remainder is exact. For y in (0, 1] and x zero or far above the subnormal numbers, as roots are.
__device__ inline float divided(float x, float y, float inverse) {
  const float q = x * inverse;
  return __fmaf_rn(__fmaf_rn(-q, y, x), inverse, q);
}

/// decayed - first / (root(v) / root_correction2 + eps), `inverse_root` being 1 / root_correction2. Masters
/// in fp32 take the bits of torch.optim.AdamW. Masters in bf16 are rounded to 8 bits with noise: there the
/// instructions for roots and reciprocals, right to 2^-22, save a third of the kernel's work.
template <bool exact>
__device__ inline float stepped(float decayed, float first, float v, float root_correction2,
                                float inverse_root, float eps) {
  if constexpr (exact) {
    return decayed - __fdiv_rn(first, divided(__fsqrt_rn(v), root_correction2, inverse_root) + eps);
  }
  // The root of what is flushed to zero is far below eps.
  float root, inverse;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fmaf_rn(root, inverse_root, eps)));
  return __fmaf_rn(-first, inverse, decayed);
}

// The expressions of torch.optim.AdamW, rounded where it rounds; this file is compiled without contraction.
// all_whole: every pack of every span is whole and on its boundary.
template <typename Master, typename Grad, typename First, typename Second, bool all_whole>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Update u) {
  const StepScalars s = *u.scalars;
  if (s.skip) return;
  // PyTorch computes these in double and rounds them once, where they meet a tensor.
  const double lr = static_cast<double>(s.learning_rate);
  const float step_size = static_cast<float>(__ddiv_rn(lr, static_cast<double>(s.bias_correction1)));
  const float root_correction2 = static_cast<float>(sqrt(static_cast<double>(s.bias_correction2)));
  const float inverse_root = __frcp_rn(root_correction2);
  const float weight_decay = static_cast<float>(1.0 - lr * u.weight_decay);
  unsigned most = 0;
  int p = 0;
  for (std::int64_t tile = blockIdx.x; tile < u.tiles; tile += gridDim.x) {
    // Tiles come in order, so their span is this one or a later one. The whole block takes the same way.
    while (p + 1 < u.pieces && tile >= u.piece[p + 1].first_tile) {
      if (u.piece[p].amax) raise_amax_of_warp(u.piece[p].amax, most);
      ++p;
    }
    const Piece& piece = u.piece[p];
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
      nan |= w[j] != w[j];  // a moment that is NaN makes its parameter one
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

void square_sum(Stream& stream, const SquareSumArgs& a) {
  if (a.count == 0) return;
  constexpr std::int64_t per_block = kSumWarps * kSumGroup;
  const bool vector = reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0;
  with_type(a.dtype, [&](auto type) {
    square_sum_kernel<decltype(type)>
        <<<grid_of(stream, a.count, per_block, 6), kSumWarps * kWarp, 0, octet::cuda::native(stream)>>>(
            a, vector);
  });
  octet::cuda::check_launch("square_sum");
}

void finish_norm(Stream& stream, const FinishNormArgs& a) {
  finish_norm_kernel<<<1, 1, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("finish_norm");
}

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
                           .decay = span.decay};
    u.tiles += ceil_div(span.count, kTile);
    if (u.pieces == kSpans) flush();
  }
  flush();
}

}  // namespace octet::ops::cuda
