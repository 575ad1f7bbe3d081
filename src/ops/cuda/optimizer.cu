#include <algorithm>

#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 128;  // elements summed in double before an exact addition

// --- exact sums of squares -------------------------------------------------------------------------------

__device__ inline void add_limb(std::int64_t* limb, std::uint64_t value) {
  if (value) atomicAdd(reinterpret_cast<unsigned long long*>(limb), static_cast<unsigned long long>(value));
}

// Adds s = m * 2^e exactly, as the CPU side does: m shifted to a limb boundary is three pieces of 32 bits.
__device__ inline void add_exactly(double s, std::int64_t* limbs) {
  if (s == 0) return;
  if (!isfinite(s)) {
    atomicOr(reinterpret_cast<unsigned long long*>(limbs + kExactLimbs), 1ull);
    return;
  }
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(s));
  // Never subnormal: the square of the smallest float is 2^-298.
  const int exponent = static_cast<int>(bits >> 52) - 1022;
  const std::uint64_t mantissa = (bits & ((1ull << 52) - 1)) | (1ull << 52);
  const int position = exponent - 53 + 512;
  const int limb = position / 32, shift = position % 32;
  const std::uint64_t low = mantissa << shift;
  const std::uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  add_limb(limbs + limb, low & 0xFFFFFFFFu);
  add_limb(limbs + limb + 1, low >> 32);
  add_limb(limbs + limb + 2, high);
}

// A warp takes 32 blocks of 128 elements at a time. It reads them in whole lines, 32 elements of each block,
// and turns them in shared memory, so that each lane sums one block in index order.
constexpr int kSumWarps = 4;

template <typename T>
__global__ void __launch_bounds__(kSumWarps* kWarp) square_sum_kernel(SquareSumArgs a) {
  __shared__ float tiles[kSumWarps][kWarp][kWarp + 1];
  __shared__ std::int64_t limbs[kExactLimbs + 1];
  for (int i = threadIdx.x; i <= kExactLimbs; i += blockDim.x) limbs[i] = 0;
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto& tile = tiles[warp];
  const auto* x = static_cast<const T*>(a.x);
  constexpr std::int64_t group = std::int64_t{kWarp} * kBlock;
  const std::int64_t groups = (a.count + group - 1) / group;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kSumWarps;
  for (std::int64_t g = blockIdx.x * static_cast<std::int64_t>(kSumWarps) + warp; g < groups; g += stride) {
    double sum = 0;
    for (int part = 0; part < kBlock / kWarp; ++part) {
      const std::int64_t begin = g * group + part * kWarp + lane;
      __syncwarp();
#pragma unroll 8
      for (int b = 0; b < kWarp; ++b) {
        const std::int64_t i = begin + b * kBlock;
        tile[b][lane] = i < a.count ? to_float(x[i]) : 0.0f;
      }
      __syncwarp();
#pragma unroll 8
      for (int i = 0; i < kWarp; ++i) {
        const double v = static_cast<double>(tile[lane][i]);
        sum += v * v;
      }
    }
    add_exactly(sum, limbs);
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

/// One span of an update, with pointers moved to its begin.
struct Update {
  float* master;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* copy;
  float* amax;
  const StepScalars* scalars;
  std::int64_t count;
  double weight_decay;  ///< 0 where the span does not decay
  float one_minus_beta1, beta2, one_minus_beta2, eps;
  bool vector;
};

// The expressions of torch.optim.AdamW, rounded where it rounds; this file is compiled without contraction.
template <typename T>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Update u) {
  __shared__ unsigned shared[kWarp];
  const StepScalars s = *u.scalars;
  if (s.skip) return;
  // PyTorch computes these in double and rounds them once, where they meet a tensor.
  const double lr = static_cast<double>(s.learning_rate);
  const float step_size = static_cast<float>(__ddiv_rn(lr, static_cast<double>(s.bias_correction1)));
  const float root_correction2 = static_cast<float>(sqrt(static_cast<double>(s.bias_correction2)));
  const float decay = static_cast<float>(1.0 - lr * u.weight_decay);
  unsigned most = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kPack;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x) * kPack; i < u.count;
       i += stride) {
    const PackAt at = pack_at(i, u.count, u.vector);
    float w[kPack], g[kPack], m[kPack], v[kPack];
    load_pack(static_cast<const float*>(u.master) + i, w, at.n, at.whole);
    load_pack(u.grad + i, g, at.n, at.whole);
    load_pack(static_cast<const float*>(u.exp_avg) + i, m, at.n, at.whole);
    load_pack(static_cast<const float*>(u.exp_avg_sq) + i, v, at.n, at.whole);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float gradient = g[j] * s.grad_scale;
      const float decayed = w[j] * decay;
      m[j] = m[j] + u.one_minus_beta1 * (gradient - m[j]);
      v[j] = v[j] * u.beta2 + u.one_minus_beta2 * gradient * gradient;
      const float denominator = __fdiv_rn(__fsqrt_rn(v[j]), root_correction2) + u.eps;
      w[j] = decayed - __fdiv_rn(step_size * m[j], denominator);
    }
    store_pack(u.master + i, w, at.n, at.whole);
    store_pack(u.exp_avg + i, m, at.n, at.whole);
    store_pack(u.exp_avg_sq + i, v, at.n, at.whole);
    if (u.copy) store_pack(static_cast<T*>(u.copy) + i, w, at.n, at.whole);
    if (u.amax) raise_most(w, at.n, most);
  }
  if (!u.amax) return;
  most = block_reduce(most, shared, Max{});
  if (threadIdx.x == 0) raise_amax(u.amax, most);
}

bool aligned(const void* x) {
  return reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
}

}  // namespace

void square_sum(Stream& stream, const SquareSumArgs& a) {
  if (a.count == 0) return;
  constexpr std::int64_t per_block = std::int64_t{kSumWarps} * kWarp * kBlock;
  with_type(a.dtype, [&](auto type) {
    square_sum_kernel<decltype(type)>
        <<<grid_of(stream, a.count, per_block, 12), kSumWarps * kWarp, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("square_sum");
}

void finish_norm(Stream& stream, const FinishNormArgs& a) {
  finish_norm_kernel<<<1, 1, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("finish_norm");
}

void adamw(Stream& stream, const AdamWWork& work) {
  const AdamWArgs& a = work.args;
  for (const AdamWSpan& span : work.spans) {
    if (span.count == 0) continue;
    Update u{};
    u.master = a.master + span.begin;
    u.grad = a.grad + span.begin;
    u.exp_avg = a.exp_avg + span.begin;
    u.exp_avg_sq = a.exp_avg_sq + span.begin;
    u.copy = a.copy ? static_cast<std::byte*>(a.copy) +
                          span.begin * static_cast<std::int64_t>(size_of(a.copy_dtype))
                    : nullptr;
    u.amax = a.amax && span.amax_index >= 0 ? a.amax + span.amax_index : nullptr;
    u.scalars = a.scalars;
    u.count = span.count;
    u.weight_decay = span.decay ? a.weight_decay : 0.0;
    u.one_minus_beta1 = static_cast<float>(1.0 - a.beta1);
    u.beta2 = static_cast<float>(a.beta2);
    u.one_minus_beta2 = static_cast<float>(1.0 - a.beta2);
    u.eps = static_cast<float>(a.eps);
    u.vector = aligned(u.master) && aligned(u.grad) && aligned(u.exp_avg) && aligned(u.exp_avg_sq) &&
               aligned(u.copy);
    with_type(a.copy_dtype, [&](auto type) {
      adamw_kernel<decltype(type)><<<grid_of(stream, span.count, std::int64_t{kThreads} * kPack), kThreads, 0,
                                     octet::cuda::native(stream)>>>(u);
    });
    octet::cuda::check_launch("adamw");
  }
}

}  // namespace octet::ops::cuda
