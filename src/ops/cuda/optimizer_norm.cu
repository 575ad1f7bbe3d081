// The norm of the gradients: exact sums of blocks of squares, and the step scalars that depend on the norm.
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kBlock = 128;  // elements summed in double before an exact addition
constexpr int kSumLane = 8;  // elements of a block that are summed in index order

__device__ inline void add_limb(std::int64_t* limb, std::uint64_t value) {
  if (value) atomicAdd(reinterpret_cast<unsigned long long*>(limb), static_cast<unsigned long long>(value));
}

// s = m * 2^e, added like on the CPU side: m, shifted to a limb boundary, is three pieces of 32 bits. `limb`:
// -1 for zero, kExactLimbs for non-finite values.
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

/// Adds the values of the lanes of a warp; all lanes call it. Lanes with the same limbs are summed first,
/// because a 64-bit atomic addition to shared memory is a loop that serializes lanes.
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

// A warp processes 32 blocks of 128 elements at a time. In each of 16 rounds, each half of the warp processes
// one block, and each lane a group of eight elements. The 16 lanes then exchange the partial sums of 16
// blocks until each lane holds the sum of one block.
constexpr int kSumWarps = 4;
constexpr int kRounds = 16;
constexpr int kRoundsAhead = 4;  ///< rounds with loads in flight together
constexpr std::int64_t kSumGroup = std::int64_t{kRounds} * kWarp * kPack;
static_assert(kPack == kSumLane && kSumGroup % kBlock == 0 && kRounds * kSumLane == kBlock);

/// Adds the squares of a pack, in order. Squares of floats are exact in double, so a fused multiply-add
/// rounds like a separate addition.
__device__ inline void add_squares(const RawPack<float>& raw, double& sum, unsigned&) {
  float x[kPack];
  raw.get(x);
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    const double v = static_cast<double>(x[j]);
    sum = __fma_rn(v, v, sum);
  }
}
/// Converts bf16 to double with two fast instructions in place of a slow one. The bits, shifted by three
/// places, are the double 2^-896 times the magnitude, also for subnormal numbers. Infinities and NaNs would
/// become finite; `most` reveals them.
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

/// Adds the sums of lanes at distance `apart`. Each lane keeps half of its blocks.
template <int apart>
__device__ inline void exchange(double (&sums)[kRounds]) {
  const bool upper = threadIdx.x & static_cast<unsigned>(apart);
#pragma unroll
  for (int r = 0; r < apart; ++r) {
    const double kept = upper ? sums[r + apart] : sums[r], given = upper ? sums[r] : sums[r + apart];
    sums[r] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, apart);
  }
}

/// Returns the sum of one of the 32 blocks of a warp, a different block for each lane. x starts at a pack
/// boundary and has all blocks. `finite`: false if the warp has read a non-finite value; the sums are then
/// invalid.
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

/// Adds the block sums for any x with `count` elements.
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

/// vector: x starts at a pack boundary.
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

// Rounds a number of three 32-bit digits, the lowest of which may be sticky, once to a double.
__device__ double to_double(std::uint32_t high, std::uint32_t middle, std::uint32_t low) {
  if (high == 0) return 0;
  // The leading 64 bits, and whether any lower bit is set.
  const int zeros = __clz(static_cast<int>(high));
  const std::uint64_t first = (static_cast<std::uint64_t>(high) << 32) | middle;
  std::uint64_t leading = first;
  std::uint32_t rest = low;
  if (zeros > 0) {
    leading = (first << zeros) | (low >> (32 - zeros));
    rest = low << zeros;
  }
  // A sticky bit below bit 10, the half unit of the 53-bit result, decides ties.
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
  // Propagate carries, so that each digit has 32 bits. The carry of the last limb becomes two more digits.
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

}  // namespace octet::ops::cuda
