#include <cmath>
#include <limits>

#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kBlock = 128;  // elements summed in double before an exact addition
constexpr int kGroup = 8;             // blocks summed side by side: eight chains of additions in flight

// Σ x² of kGroup whole blocks, each in index order.
template <typename T>
OCTET_SIMD void block_sums(const T* x, double* sums) {
  double sum[kGroup] = {};
  for (std::int64_t i = 0; i < kBlock; ++i) {
    for (int b = 0; b < kGroup; ++b) {
      const double v = static_cast<double>(simd::load(x[b * kBlock + i]));
      sum[b] += v * v;
    }
  }
  for (int b = 0; b < kGroup; ++b) sums[b] = sum[b];
}

// Adds a sum s = m * 2^e exactly: m shifted to a limb boundary is three pieces of 32 bits, of which the
// limbs each take one. A limb holds 2^31 such additions, over all calls and ranks, before it overflows. The
// square of the smallest float is 2^-298 and the largest sum is below 2^263, so no bit falls outside
// [2^-512, 2^512).
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

// The expressions of torch.optim.AdamW, rounded where it rounds.
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

// Updates [begin, begin + n) of the slice and returns the largest |w| as bits.
template <typename T>
OCTET_SIMD std::uint32_t update_and_copy(const AdamWStep& s, const AdamWArgs& a, std::int64_t begin,
                                         std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t c = begin; c < begin + count; c += kChunk) {
    const std::int64_t n = chunk_length(c, begin + count);
    update(s, a.master + c, a.grad + c, a.exp_avg + c, a.exp_avg_sq + c, n);
    if (a.copy) store(a.master + c, static_cast<T*>(a.copy) + c, n);
    if (a.amax) {
      const std::uint32_t bits = max_bits(a.master + c, n);
      most = bits > most ? bits : most;
    }
  }
  return most;
}

}  // namespace

void square_sum(const SquareSumArgs& a) {
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const T*>(a.x);
    const std::int64_t blocks = (a.count + kBlock - 1) / kBlock;
    simd::parallel_rows(blocks, kBlock, [&](std::int64_t first, std::int64_t last) {
      std::int64_t local[kExactLimbs + 1] = {};
      std::int64_t b = first;
      double sums[kGroup];
      for (; b + kGroup <= last && (b + kGroup) * kBlock <= a.count; b += kGroup) {
        block_sums(x + b * kBlock, sums);
        for (const double s : sums) add_exactly(s, local);
      }
      for (; b < last; ++b) {
        double sum = 0;
        for (std::int64_t i = b * kBlock; i < std::min(a.count, (b + 1) * kBlock); ++i) {
          const double v = static_cast<double>(simd::load(x[i]));
          sum += v * v;
        }
        add_exactly(sum, local);
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
  // Carry, so that each digit has 32 bits; what leaves the last limb becomes two more.
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
    // Three digits hold more than a double; whether anything lies below decides ties.
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
  // PyTorch computes these in double and rounds them once, where they meet a tensor.
  const double lr = static_cast<double>(scalars.learning_rate);
  AdamWStep step{};
  step.grad_scale = scalars.grad_scale;
  step.one_minus_beta1 = static_cast<float>(1.0 - a.beta1);
  step.beta2 = static_cast<float>(a.beta2);
  step.one_minus_beta2 = static_cast<float>(1.0 - a.beta2);
  step.step_size = static_cast<float>(lr / static_cast<double>(scalars.bias_correction1));
  step.root_correction2 = static_cast<float>(std::sqrt(static_cast<double>(scalars.bias_correction2)));
  step.eps = static_cast<float>(a.eps);
  const float decay = static_cast<float>(1.0 - lr * a.weight_decay);
  with_type(a.copy_dtype, [&](auto type) {
    for (const AdamWSpan& span : work.spans) {
      AdamWStep s = step;
      s.decay = span.decay ? decay : 1.0f;
      simd::parallel_rows(span.count, 16, [&](std::int64_t begin, std::int64_t end) {
        const std::uint32_t most = update_and_copy<decltype(type)>(s, a, span.begin + begin, end - begin);
        if (a.amax && span.amax_index >= 0 && most > 0) raise_amax(a.amax + span.amax_index, most);
      });
    }
  });
}

}  // namespace octet::ops::cpu
