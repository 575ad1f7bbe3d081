#include "octet/ops/cross_entropy.h"

#include <type_traits>

#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kCapThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kCapThreads) soft_cap_kernel(Matrix x, float cap, bool vector) {
  const std::int64_t row_packs = (x.cols + kPack - 1) / kPack;
  const std::int64_t count = x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    T* to = row_of<T>(x, p / row_packs) + p % row_packs * kPack;
    const PackAt at = pack_at(p % row_packs * kPack, x.cols, vector);
    float y[kPack];
    load_pack(static_cast<const T*>(to), y, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = cap * tanhf(__fdiv_rn(y[i], cap));
    store_pack(to, y, at.n, at.whole);
  }
}

}  // namespace

void soft_cap(Stream& stream, const SoftCapArgs& a) {
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  if (count == 0) return;
  with_type(a.x.dtype, [&](auto type) {
    soft_cap_kernel<decltype(type)>
        <<<grid_of(stream, count, kCapThreads, 4), kCapThreads, 0, octet::cuda::native(stream)>>>(a.x, a.cap,
                                                                                                  packs(a.x));
  });
  octet::cuda::check_launch("soft_cap");
}

namespace {

constexpr int kThreads = 1024;
constexpr int kPacks = 4;  // packs of a thread in flight at once
constexpr std::int64_t kStep = static_cast<std::int64_t>(kThreads) * kPack;
constexpr float kLog2E = 1.44269504f;

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Reference of exponents, in powers of two. Its rounding does not matter, because the sum and each of its
/// terms use the same reference.
__device__ inline float base_of(float most) {
  return most == -INFINITY ? 0.0f : most * kLog2E;
}
/// Returns e^logit relative to a base.
__device__ inline float relative_exp(float logit, float base) {
  return exp2_of(__fmaf_rn(logit, kLog2E, -base));
}

/// Maximum so far, and the sum of exponentials relative to it.
struct Partial {
  float most;
  float sum;
};
struct Merge {
  __device__ Partial operator()(Partial a, Partial b) const {
    // Symmetric, so that both lanes of an exchange compute the same bits.
    const float most = fmaxf(a.most, b.most);
    const float base = base_of(most);
    return {most, a.sum * exp2_of(base_of(a.most) - base) + b.sum * exp2_of(base_of(b.most) - base)};
  }
};
__device__ inline Partial merge_block(Partial x, Partial* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Partial other{__shfl_xor_sync(0xFFFFFFFFu, x.most, offset),
                        __shfl_xor_sync(0xFFFFFFFFu, x.sum, offset)};
    x = Merge{}(x, other);
  }
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  // Each warp merges the sums of all warps itself, in the same tree.
  x = shared[lane];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Partial other{__shfl_xor_sync(0xFFFFFFFFu, x.most, offset),
                        __shfl_xor_sync(0xFFFFFFFFu, x.sum, offset)};
    x = Merge{}(x, other);
  }
  return x;
}
static_assert(kThreads == kWarp * kWarp);

/// Returns the logit after the soft cap.
template <bool soft>
__device__ inline float capped(float x, float cap) {
  return soft ? cap * tanhf(__fdiv_rn(x, cap)) : x;
}

/// Loads packs of a row ahead of their use. The end of a row, and unaligned rows (vector false), are read
/// element by element. Elements after the end are -infinity, with an exponential of zero.
template <typename T, bool vector>
struct Packs {
  RawPack<T> raw[vector ? kPacks : 1];
  const T* row;
  std::int64_t first, cols;
  __device__ void load(const T* from, std::int64_t col, std::int64_t end) {
    row = from, first = col, cols = end;
    if constexpr (vector) {
#pragma unroll
      for (int u = 0; u < kPacks; ++u) {
        if (col + u * kStep + kPack <= end) raw[u].load(from + col + u * kStep);
      }
    }
  }
  __device__ int count(int u) const {
    const std::int64_t left = cols - (first + u * kStep);
    return left < 0 ? 0 : left < kPack ? static_cast<int>(left) : kPack;
  }
  __device__ void get(int u, float (&x)[kPack]) const {
    const int n = count(u);
    if constexpr (vector) {
      if (n == kPack) return raw[u].get(x);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      x[i] = i < n ? to_float(row[first + u * kStep + i]) : -INFINITY;
    }
  }
};

template <typename T, bool vector, bool soft>
__device__ inline Partial sum_of_row(const T* logits, std::int64_t cols, float cap) {
  Partial mine{-INFINITY, 0.0f};
  for (std::int64_t c = threadIdx.x * kPack; c < cols; c += kPacks * kStep) {
    Packs<T, vector> packs;
    packs.load(logits, c, cols);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      float x[kPack];
      packs.get(u, x);
      float most = mine.most;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (soft && i < packs.count(u)) x[i] = capped<soft>(x[i], cap);
        most = fmaxf(most, x[i]);
      }
      const float base = base_of(most);
      float sum = mine.sum * exp2_of(base_of(mine.most) - base);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += relative_exp(x[i], base);
      mine = {most, sum};
    }
  }
  return mine;
}

/// The parts of a row that is not plain: see RowParts of the CPU.
struct Varied {
  float factor = 1;
  float uniform = 0;
  float at_target = 1;
};

/// Returns whether the target is the first of the most probable tokens of a row, in all threads.
template <typename T, bool soft>
__device__ inline bool is_hit(const T* logits, std::int64_t target, float at_target, float most, float cap) {
  // Both values are equal in all threads.
  if (!(at_target == most)) return false;
  bool earlier = false;
  for (std::int64_t i = threadIdx.x; i < target; i += kThreads)
    earlier = earlier || capped<soft>(to_float(logits[i]), cap) == most;
  return __syncthreads_or(earlier ? 1 : 0) == 0;
}

/// Returns the sum of the logits of a row in thread 0. `shared`: not in use.
template <typename T, bool soft>
__device__ inline double sum_of_logits(const T* logits, std::int64_t cols, float cap, double* shared) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads)
    sum += static_cast<double>(capped<soft>(to_float(logits[i]), cap));
  return block_reduce(sum, shared, Plus{});
}

template <typename T, bool vector, bool soft, bool varies>
__device__ inline void differentiate_row(T* logits, std::int64_t cols, float cap, const Partial& all,
                                         std::int64_t target, const Varied& varied) {
  const float base = base_of(all.most), inverse = __fdiv_rn(1.0f, all.sum);
  for (std::int64_t c = threadIdx.x * kPack; c < cols; c += kPacks * kStep) {
    Packs<T, vector> packs;
    packs.load(logits, c, cols);
#pragma unroll
    for (int u = 0; u < kPacks; ++u) {
      const int n = packs.count(u);
      if (n == 0) break;
      const std::int64_t at = c + u * kStep;
      float x[kPack];
      packs.get(u, x);
      const bool here = target >= at && target < at + kPack;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float logit = capped<soft>(x[i], cap);
        float p = relative_exp(logit, base) * inverse;
        if (here && at + i == target) p -= varies ? varied.at_target : 1.0f;
        if (varies) p = (p - varied.uniform) * varied.factor;
        if (soft) {
          const float t = __fdiv_rn(logit, cap);
          p *= 1.0f - t * t;
        }
        x[i] = p;
      }
      store_pack(logits + at, x, n, vector && n == kPack);
    }
  }
}

template <typename T>
__device__ inline void clear_row(T* logits, std::int64_t cols, bool vector) {
  const float zeros[kPack] = {};
  for (std::int64_t c = threadIdx.x * kPack; c < cols; c += kStep) {
    const PackAt at = pack_at(c, cols, vector);
    store_pack(logits + c, zeros, at.n, at.whole);
  }
}

// A block processes one row at a time. The first pass computes maximum and sum. The second pass computes the
// gradient and finds the row in the L2 cache. vector: packs of rows are aligned. soft: logits have a cap.
// varies: CrossEntropyArgs::varies().
template <typename T, bool vector, bool soft, bool varies>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyArgs a) {
  __shared__ Partial shared[kWarp];
  __shared__ double sums[varies ? kWarp : 1];
  __shared__ Varied of_row;
  const std::int64_t vocabulary = a.logits.cols;
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    const std::int64_t target = a.targets[row];
    T* logits = row_of<T>(a.logits, row);
    if (target < 0) {
      if (a.row_loss && threadIdx.x == 0) a.row_loss[row] = 0.0f;
      if (varies && a.row_hits && threadIdx.x == 0) a.row_hits[row] = 0.0f;
      if (a.gradient) clear_row(logits, vocabulary, vector);
      continue;
    }
    // A target outside the vocabulary has no logit, and makes the loss NaN. Callers check targets before.
    const float at_target =
        target < vocabulary ? capped<soft>(to_float(logits[target]), a.soft_cap) : __int_as_float(0x7FC00000);
    const Partial all = merge_block(
        sum_of_row<T, vector, soft>(static_cast<const T*>(logits), vocabulary, a.soft_cap), shared);
    double logits_sum = 0;
    if constexpr (varies) {
      if (a.row_hits) {
        const bool hit =
            is_hit<T, soft>(static_cast<const T*>(logits), target, at_target, all.most, a.soft_cap);
        if (threadIdx.x == 0) a.row_hits[row] = hit ? 1.0f : 0.0f;
      }
      if (a.smoothing > 0)
        logits_sum = sum_of_logits<T, soft>(static_cast<const T*>(logits), vocabulary, a.soft_cap, sums);
    }
    if ((varies || a.row_loss) && threadIdx.x == 0) {
      constexpr double ln2 = 0.693147180559945309;
      const double normalizer =
          log(static_cast<double>(all.sum)) + static_cast<double>(base_of(all.most)) * ln2;
      const double of_target = normalizer - static_cast<double>(at_target);
      double loss = of_target, factor = 1;
      if constexpr (varies) {
        Varied varied;
        if (a.smoothing > 0) {
          const double e = static_cast<double>(a.smoothing), count = static_cast<double>(vocabulary);
          loss = (1 - e) * of_target + e * (normalizer - logits_sum / count);
          varied.uniform = static_cast<float>(e / count);
          varied.at_target = static_cast<float>(1 - e);
        }
        if (a.by_probability) factor = exp(-of_target);
        if (a.factors_loss) factor *= static_cast<double>(a.row_factors[row]);
        loss *= factor;
        if (a.row_factors && !a.factors_loss) factor *= static_cast<double>(a.row_factors[row]);
        varied.factor = static_cast<float>(factor);
        of_row = varied;
      }
      if (a.row_loss) a.row_loss[row] = static_cast<float>(loss);
    }
    // This barrier, or the barriers of merge_block, separate reads of logits from the writes that follow.
    if constexpr (varies) __syncthreads();
    if (a.gradient) {
      differentiate_row<T, vector, soft, varies>(logits, vocabulary, a.soft_cap, all, target, of_row);
    }
  }
}

constexpr int kEntropyThreads = 256;
constexpr int kLast = kEntropyLogits - 1;

/// Returns bits that are ordered like the values.
__device__ inline unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of_bits(unsigned bits) {
  return __uint_as_float((bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits);
}

/// Returns the largest key of the block in all threads. The previous contents of `shared` must not be in use.
__device__ inline unsigned long long largest_key(unsigned long long key, unsigned long long* shared) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, offset));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = key;
  __syncthreads();
  for (int warp = 0; warp < kEntropyThreads / kWarp; ++warp) key = max(key, shared[warp]);
  return key;
}

// One block per row. Each thread lists its largest logits in descending order. Then the largest first entry
// of all lists is taken, as often as logits are wanted.
template <typename T>
__global__ void __launch_bounds__(kEntropyThreads) row_entropy_kernel(RowEntropyArgs a) {
  __shared__ unsigned long long shared[2][kEntropyThreads / kWarp];
  const T* logits = row_of<T>(a.logits, blockIdx.x);
  float own[kEntropyLogits];
#pragma unroll
  for (int k = 0; k < kEntropyLogits; ++k) own[k] = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < a.logits.cols; i += kEntropyThreads) {
    const float x = to_float(logits[i]);
    if (!(x > own[kLast])) continue;
    own[kLast] = x;
#pragma unroll
    for (int k = kLast; k > 0; --k) {
      const float above = fmaxf(own[k], own[k - 1]);
      own[k] = fminf(own[k], own[k - 1]);
      own[k - 1] = above;
    }
  }
  const int count = a.logits.cols < kEntropyLogits ? static_cast<int>(a.logits.cols) : kEntropyLogits;
  double most = 0, sum = 0, weighted = 0;
  for (int k = 0; k < count; ++k) {
    const unsigned long long mine =
        (static_cast<unsigned long long>(ordered_bits(own[0])) << 32) | threadIdx.x;
    const unsigned long long key = largest_key(mine, shared[k % 2]);
    if (key == mine) {
#pragma unroll
      for (int j = 0; j < kLast; ++j) own[j] = own[j + 1];
      own[kLast] = -INFINITY;
    }
    if (threadIdx.x != 0) continue;
    float x = value_of_bits(static_cast<unsigned>(key >> 32));
    if (a.soft_cap > 0) x = capped<true>(x, a.soft_cap);
    if (k == 0) most = static_cast<double>(x);
    const double below = static_cast<double>(x) - most, e = exp(below);
    sum += e;
    weighted += e > 0 ? below * e : 0.0;
  }
  if (threadIdx.x != 0) return;
  a.out[blockIdx.x] =
      static_cast<float>(pow(fmax(0.0, log(sum) - weighted / sum) / 3.0, static_cast<double>(a.power)));
}

// One block: each thread sums its values in order, then the threads are added as a tree of fixed shape.
__global__ void __launch_bounds__(1024) add_sum_kernel(AddSumArgs a) {
  __shared__ double shared[kWarp];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < a.count; i += 1024) sum += static_cast<double>(a.values[i]);
  sum = block_reduce(sum, shared, Plus{});
  if (threadIdx.x == 0) *a.total += sum;
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& a) {
  if (a.logits.rows == 0) return;
  // One block per multiprocessor, so that the rows in flight stay in the L2 cache.
  const unsigned grid = grid_of(stream, a.logits.rows, 1, 1);
  const bool vector = packs(a.logits);
  with_type(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel) { kernel<<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a); };
    const auto choose = [&](auto soft, auto varies) {
      vector ? launch(cross_entropy_kernel<T, true, decltype(soft)::value, decltype(varies)::value>)
             : launch(cross_entropy_kernel<T, false, decltype(soft)::value, decltype(varies)::value>);
    };
    const auto with_cap = [&](auto varies) {
      a.soft_cap > 0 ? choose(std::true_type{}, varies) : choose(std::false_type{}, varies);
    };
    a.varies() ? with_cap(std::true_type{}) : with_cap(std::false_type{});
  });
  octet::cuda::check_launch("cross_entropy");
}

void row_entropy(Stream& stream, const RowEntropyArgs& a) {
  if (a.logits.rows == 0) return;
  with_type(a.logits.dtype, [&](auto type) {
    row_entropy_kernel<decltype(type)>
        <<<static_cast<unsigned>(a.logits.rows), kEntropyThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("row_entropy");
}

void add_sum(Stream& stream, const AddSumArgs& a) {
  if (a.count == 0) return;
  add_sum_kernel<<<1, 1024, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("add_sum");
}

}  // namespace octet::ops::cuda
