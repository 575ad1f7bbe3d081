#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/rows.h"
#include "kernels.h"
#include "rounding.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kBlock = 128;  // elements summed in double before an exact addition
constexpr int kLane = 8;              // consecutive elements that are summed in index order
constexpr int kLanes = 16;

// Σ x² of a block: sums of lanes in parallel, then pairwise sums of lanes.
template <typename T>
OCTET_SIMD double block_sum(const T* x) {
  double sum[kLanes] = {};
  for (int i = 0; i < kLane; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double v = static_cast<double>(simd::load(x[lane * kLane + i]));
      sum[lane] += v * v;
    }
  }
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    for (int lane = 0; lane < apart; ++lane) sum[lane] += sum[lane + apart];
  }
  return sum[0];
}

// Adds a sum s = m * 2^e exactly. m, shifted to a limb boundary, is three pieces of 32 bits, and each piece
// is added to one limb. A limb holds 2^31 such additions, over all calls and ranks, before it overflows. The
// square of the smallest float is 2^-298 and the largest sum is below 2^263, so no bit is outside of [2^-512,
// 2^512).
void add_exactly(double s, std::int64_t* limbs) {
  if (s == 0) return;
  if (!std::isfinite(s)) {
    limbs[kExactLimbs] |= 1;
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(s, &exponent);
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  const int position = exponent - 53 + 512;
  const int limb = position / 32;
  const unsigned __int128 shifted = static_cast<unsigned __int128>(mantissa) << (position % 32);
  limbs[limb] += static_cast<std::int64_t>(shifted & 0xFFFFFFFFu);
  limbs[limb + 1] += static_cast<std::int64_t>((shifted >> 32) & 0xFFFFFFFFu);
  limbs[limb + 2] += static_cast<std::int64_t>(shifted >> 64);
}

struct AdamWStep {
  float grad_scale, decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, eps;
};

// The expressions of torch.optim.AdamW, with roundings at the same places.
OCTET_SIMD void update(const AdamWStep& s, float* __restrict w, const float* __restrict grad,
                       float* __restrict m, float* __restrict v, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * s.grad_scale;
    const float decayed = w[i] * s.decay;
    const float m_new = m[i] + s.one_minus_beta1 * (g - m[i]);
    const float v_new = v[i] * s.beta2 + s.one_minus_beta2 * g * g;
    const float denominator = std::sqrt(v_new) / s.root_correction2 + s.eps;
    m[i] = m_new;
    v[i] = v_new;
    w[i] = decayed - s.step_size * m_new / denominator;
  }
}

// Computes the noise of elements [first, first + n) of a tensor; first is a multiple of kNoiseGroup.
OCTET_SIMD void make_noise(std::uint64_t key, std::uint32_t tensor, Rounded what, std::int64_t first,
                           std::int64_t n, std::uint16_t* __restrict noise) {
  const std::int64_t groups = (n + kNoiseGroup - 1) / kNoiseGroup;
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto words = rounding_noise(key, tensor, what, first / kNoiseGroup + g);
    for (int w = 0; w < 4; ++w) {
      noise[g * kNoiseGroup + 2 * w] = static_cast<std::uint16_t>(words[w]);
      noise[g * kNoiseGroup + 2 * w + 1] = static_cast<std::uint16_t>(words[w] >> 16);
    }
  }
}

OCTET_SIMD void store_stochastic(const float* __restrict from, const std::uint16_t* __restrict noise,
                                 Bf16* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i].bits = bf16_stochastic(from[i], noise[i]);
}

OCTET_SIMD void decode_block(const MomentFormat& f, const std::uint8_t* __restrict codes, float scale,
                             float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = moment_value(f, codes[i]) * scale;
}

OCTET_SIMD float encode_block(const MomentFormat& f, const float* __restrict from,
                              const std::uint16_t* __restrict noise, std::uint8_t* __restrict codes,
                              std::int64_t n) {
  const std::int32_t exponent = moment_exponent(f, max_bits(from, n));
  const float unscale = moment_unscale(exponent);
  for (std::int64_t i = 0; i < n; ++i) codes[i] = moment_code(f, from[i] * unscale, noise[i]);
  return moment_scale(exponent);
}

// A storage format of one state: converts a chunk to floats and stores it again.
template <typename T>
struct Plain {
  T* data;
  float* open(std::int64_t at, float* buffer, std::int64_t n) const {
    if constexpr (std::is_same_v<T, float>) return data + at;
    load_chunk(data + at, buffer, n);
    return buffer;
  }
  static constexpr bool noisy = !std::is_same_v<T, float>;
  void close(std::int64_t at, const float* x, const std::uint16_t* noise, std::int64_t n) const {
    if constexpr (noisy) store_stochastic(x, noise, data + at, n);
  }
  OCTET_SIMD static void load_chunk(const T* from, float* to, std::int64_t n) { load(from, to, n); }
};
struct Coded {
  std::uint8_t* codes;
  float* scales;
  MomentFormat format;
  float* open(std::int64_t at, float* buffer, std::int64_t n) const {
    for (std::int64_t b = 0; b < n; b += kMomentBlock) {
      decode_block(format, codes + at + b, scales[(at + b) / kMomentBlock], buffer + b,
                   std::min(kMomentBlock, n - b));
    }
    return buffer;
  }
  static constexpr bool noisy = true;
  void close(std::int64_t at, const float* x, const std::uint16_t* noise, std::int64_t n) const {
    for (std::int64_t b = 0; b < n; b += kMomentBlock) {
      scales[(at + b) / kMomentBlock] =
          encode_block(format, x + b, noise + b, codes + at + b, std::min(kMomentBlock, n - b));
    }
  }
};
static_assert(kChunk % kMomentBlock == 0 && kMomentBlock % kNoiseGroup == 0);

/// The stored states in their formats.
template <typename Master, typename Grad, typename First, typename Second>
struct Stored {
  Plain<Master> master;
  const Grad* grad;
  First exp_avg;
  Second exp_avg_sq;
  void* copy;
  DType copy_dtype;
};

OCTET_SIMD void copy_chunk(const float* from, void* to, DType dtype, std::int64_t at, std::int64_t n) {
  if (dtype == DType::bf16) {
    store(from, static_cast<Bf16*>(to) + at, n);
  } else {
    store(from, static_cast<float*>(to) + at, n);
  }
}

OCTET_SIMD std::uint32_t magnitude(const float* x, std::int64_t n) {
  return max_bits(x, n);
}

/// Elements of a span, relative to its begin.
struct Range {
  std::int64_t begin = 0, end = 0;
};

// Updates a range of a span. Returns the bits of the largest stored |w|.
template <typename S>
std::uint32_t update_range(const AdamWStep& step, const S& s, const AdamWSpan& span, const Range& range,
                           bool amax, std::uint64_t key) {
  std::uint32_t most = 0;
  float w_buffer[kChunk], g_buffer[kChunk], m_buffer[kChunk], v_buffer[kChunk];
  std::uint16_t noise[kChunk];
  for (std::int64_t c = range.begin; c < range.end; c += kChunk) {
    const std::int64_t n = chunk_length(c, range.end), at = span.begin + c;
    float* w = s.master.open(at, w_buffer, n);
    float* m = s.exp_avg.open(at, m_buffer, n);
    float* v = s.exp_avg_sq.open(at, v_buffer, n);
    const float* g = nullptr;
    using Grad = std::remove_cvref_t<decltype(*s.grad)>;
    if constexpr (std::is_same_v<Grad, float>) {
      g = s.grad + at;
    } else {
      Plain<Grad>::load_chunk(s.grad + at, g_buffer, n);
      g = g_buffer;
    }
    update(step, w, g, m, v, n);
    const auto close = [&](const auto& state, float* x, Rounded what) {
      if constexpr (std::remove_cvref_t<decltype(state)>::noisy) {
        make_noise(key, span.tensor, what, span.first + c, n, noise);
      }
      state.close(at, x, noise, n);
    };
    close(s.exp_avg, m, Rounded::exp_avg);
    close(s.exp_avg_sq, v, Rounded::exp_avg_sq);
    close(s.master, w, Rounded::master);
    if (s.copy) copy_chunk(w, s.copy, s.copy_dtype, at, n);
    if (!amax) continue;
    // The maximum of the stored values, not of the values before rounding.
    const std::uint32_t bits = magnitude(s.master.open(at, w_buffer, n), n);
    most = bits > most ? bits : most;
  }
  return most;
}

template <typename S>
void update_spans(const AdamWStep& base, const S& stored, const AdamWWork& work) {
  const AdamWArgs& a = work.args;
  for (const AdamWSpan& span : work.spans) {
    AdamWStep step = base;
    // PyTorch computes these values in double and rounds them once, before they are applied to a tensor.
    const double lr = static_cast<double>(a.scalars->learning_rate) * static_cast<double>(span.rate);
    step.step_size = static_cast<float>(lr / static_cast<double>(a.scalars->bias_correction1));
    step.decay = span.decay ? static_cast<float>(1.0 - lr * a.weight_decay) : 1.0f;
    const bool amax = a.amax && span.amax_index >= 0;
    // Threads get whole blocks of a span, so that no block is divided.
    const std::int64_t blocks = (span.count + kMomentBlock - 1) / kMomentBlock;
    simd::parallel_rows(blocks, 16 * kMomentBlock, [&](std::int64_t begin, std::int64_t end) {
      const Range range{begin * kMomentBlock, std::min(span.count, end * kMomentBlock)};
      const std::uint32_t most = update_range(step, stored, span, range, amax, a.scalars->noise);
      if (amax && most > 0) raise_amax(a.amax + span.amax_index, most);
    });
  }
}

// Calls f(first moment, second moment) in their storage format.
template <typename F>
void with_moments(const AdamWArgs& a, F f) {
  if (a.moment_dtype == DType::u8) {
    return f(Coded{static_cast<std::uint8_t*>(a.exp_avg), a.exp_avg_scale, kFirstMoment},
             Coded{static_cast<std::uint8_t*>(a.exp_avg_sq), a.exp_avg_sq_scale, kSecondMoment});
  }
  with_type(a.moment_dtype, [&](auto type) {
    using T = decltype(type);
    f(Plain<T>{static_cast<T*>(a.exp_avg)}, Plain<T>{static_cast<T*>(a.exp_avg_sq)});
  });
}

}  // namespace

void square_sum(const SquareSumArgs& a) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const T*>(a.x);
    const std::int64_t blocks = (a.count + kBlock - 1) / kBlock;
    simd::parallel_rows(blocks, kBlock, [&](std::int64_t first, std::int64_t last) {
      std::int64_t local[kExactLimbs + 1] = {};
      for (std::int64_t b = first; b < last; ++b) {
        const std::int64_t begin = b * kBlock, left = a.count - begin;
        if (left >= kBlock) {
          add_exactly(block_sum(x + begin), local);
        } else {
          T filled[kBlock] = {};
          std::copy_n(x + begin, left, filled);
          add_exactly(block_sum(filled), local);
        }
      }
      for (int i = 0; i < kExactLimbs; ++i) {
        if (local[i]) std::atomic_ref<std::int64_t>(a.limbs[i]).fetch_add(local[i]);
      }
      if (local[kExactLimbs]) std::atomic_ref<std::int64_t>(a.limbs[kExactLimbs]).fetch_or(1);
    });
  });
}

void finish_norm(const FinishNormArgs& a) {
  StepScalars& s = *a.scalars;
  s.grad_norm = 0.0f;
  s.grad_scale = 0.0f;
  s.skip = 1;
  if (!(s.label_tokens > 0)) return;
  if (a.limbs[kExactLimbs] != 0) {
    s.grad_norm = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  // Carries, so that each digit has 32 bits. The carry out of the last limb becomes two more digits.
  std::uint32_t digits[kExactLimbs + 2];
  std::uint64_t carry = 0;
  int top = -1;
  for (int i = 0; i < kExactLimbs + 2; ++i) {
    const unsigned __int128 value =
        static_cast<unsigned __int128>(carry) +
        (i < kExactLimbs ? static_cast<std::uint64_t>(a.limbs[i]) : std::uint64_t{0});
    digits[i] = static_cast<std::uint32_t>(value);
    carry = static_cast<std::uint64_t>(value >> 32);
    if (digits[i] != 0) top = i;
  }
  double sum = 0;
  if (top >= 0) {
    // Three digits hold more bits than a double. Whether any lower bit is set decides ties.
    unsigned __int128 leading = 0;
    for (int i = top; i > top - 3; --i) leading = (leading << 32) | (i >= 0 ? digits[i] : 0u);
    for (int i = top - 3; i >= 0; --i) leading |= digits[i] != 0 ? 1u : 0u;
    sum = std::ldexp(static_cast<double>(leading), 32 * (top - 2) - 512);
  }
  s.grad_norm = static_cast<float>(std::sqrt(sum) / s.label_tokens);
  if (!std::isfinite(s.grad_norm)) return;
  float clip = 1.0f;
  if (s.max_grad_norm > 0) clip = std::min(1.0f, s.max_grad_norm / (s.grad_norm + 1e-6f));
  s.grad_scale = static_cast<float>(static_cast<double>(clip) / s.label_tokens);
  s.skip = 0;
}

void adamw(const AdamWWork& work) {
  const AdamWArgs& a = work.args;
  const StepScalars& scalars = *a.scalars;
  if (scalars.skip) return;
  AdamWStep step{};
  step.grad_scale = scalars.grad_scale;
  step.one_minus_beta1 = static_cast<float>(1.0 - a.beta1);
  step.beta2 = static_cast<float>(a.beta2);
  step.one_minus_beta2 = static_cast<float>(1.0 - a.beta2);
  step.root_correction2 = static_cast<float>(std::sqrt(static_cast<double>(scalars.bias_correction2)));
  step.eps = static_cast<float>(a.eps);
  with_type(a.master_dtype, [&](auto master) {
    with_type(a.grad_dtype, [&](auto grad) {
      with_moments(a, [&](auto first, auto second) {
        using Master = decltype(master);
        using Grad = decltype(grad);
        const Stored<Master, Grad, decltype(first), decltype(second)> stored{{static_cast<Master*>(a.master)},
                                                                             static_cast<const Grad*>(a.grad),
                                                                             first,
                                                                             second,
                                                                             a.copy,
                                                                             a.copy_dtype};
        update_spans(step, stored, work);
      });
    });
  });
}

}  // namespace octet::ops::cpu
