#include "octet/ops/distillation.h"

#include "cuda/rows.cuh"
#include "distillation_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kDistillThreads = 1024;
constexpr int kDistillWarps = kDistillThreads / kWarp;
static_assert(kDistillWarps == kWarp, "every lane has the value of one warp");

/// Returns the logit after the cap. -infinity marks a listed token, which keeps this value.
__device__ inline float distilled_logit(float x, float cap) {
  return cap > 0 && x != -INFINITY ? cap * tanhf(__fdiv_rn(x, cap)) : x;
}
/// Returns the gradient of the cap at a capped logit.
__device__ inline float cap_slope(float logit, float cap) {
  if (cap <= 0) return 1.0f;
  const float t = __fdiv_rn(logit, cap);
  return 1.0f - t * t;
}

/// Calls use(column, logit) for the logits of a row that this thread reads, and stores what use() returns if
/// `stores`.
template <bool stores, typename T, typename Use>
__device__ inline void each_logit(T* row, std::int64_t cols, bool vector, Use use) {
  for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kPack; c < cols;
       c += static_cast<std::int64_t>(kDistillThreads) * kPack) {
    const PackAt at = pack_at(c, cols, vector);
    float x[kPack];
    load_pack(static_cast<const T*>(row + c), x, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i >= at.n) continue;
      if constexpr (stores) {
        x[i] = use(c + i, x[i]);
      } else {
        use(c + i, x[i]);
      }
    }
    if constexpr (stores) store_pack(row + c, x, at.n, at.whole);
  }
}

/// The maximum of some values in all threads; -infinity without any.
__device__ inline float most_of_block(float x, float* shared) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = shared[threadIdx.x % kWarp];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}
/// The sum over the block in all threads, in a fixed order.
__device__ inline double sum_of_block(double x, double* shared) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = shared[threadIdx.x % kWarp];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

/// The largest capped logit of a row, and ln Σ exp(logit / temperature).
struct BlockSum {
  float most;
  double normalizer;
};
template <typename T>
__device__ inline BlockSum sum_row(T* row, std::int64_t cols, bool vector, float cap, float temperature,
                                   double* shared) {
  float most = -INFINITY;
  each_logit<false>(row, cols, vector,
                    [&](std::int64_t, float x) { most = fmaxf(most, distilled_logit(x, cap)); });
  most = most_of_block(most, reinterpret_cast<float*>(shared));
  float sum = 0;
  each_logit<false>(row, cols, vector, [&](std::int64_t, float x) {
    if (x != -INFINITY) sum += expf(__fdiv_rn(distilled_logit(x, cap) - most, temperature));
  });
  const double all = sum_of_block(static_cast<double>(sum), shared);
  return {most, static_cast<double>(most) / static_cast<double>(temperature) + log(all)};
}

__device__ inline double log_add(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  return least == -INFINITY ? most : most + log1p(exp(least - most));
}

__device__ inline void put_row(const DistillationArgs& a, std::int64_t r, double divergence,
                               double cross_entropy, bool agrees) {
  a.row_divergence[r] = static_cast<float>(divergence);
  a.row_cross_entropy[r] = static_cast<float>(cross_entropy);
  a.row_loss[r] = static_cast<float>((1 - a.rule.ratio) * cross_entropy + a.rule.ratio * divergence);
  a.row_agreement[r] = agrees ? 1.0f : 0.0f;
}

template <typename T>
__device__ inline void clear_row(const DistillationArgs& a, std::int64_t r, bool vector) {
  if (threadIdx.x == 0)
    a.row_loss[r] = a.row_divergence[r] = a.row_cross_entropy[r] = a.row_agreement[r] = 0.0f;
  if (a.gradient)
    each_logit<true>(row_of<T>(a.logits, r), a.logits.cols, vector, [](std::int64_t, float) { return 0.0f; });
}

// A block processes one row at a time. Listed tokens are kept apart, and -infinity replaces their logits
// while the other tokens are summed. So the probability of the other tokens is a sum, not a difference.
template <typename T>
__global__ void __launch_bounds__(kDistillThreads) listed_kernel(DistillationArgs a, bool vector) {
  __shared__ double shared[kDistillWarps];
  const std::int64_t vocabulary = a.logits.cols, ranks = a.ranks;
  const double temperature = a.rule.temperature;
  for (std::int64_t r = blockIdx.x; r < a.logits.rows; r += gridDim.x) {
    const std::int64_t target = a.targets[r];
    if (target < 0) {
      clear_row<T>(a, r, vector);
      continue;
    }
    T* const x = row_of<T>(a.logits, r);
    const std::int32_t* const ids = a.ids + r * ranks;
    const float* const logprobs = a.logprobs + r * ranks;
    float* const kept = a.kept + r * ranks;
    // A target outside the vocabulary has no logit, and makes the loss NaN. Callers check targets before.
    const float at_target =
        target < vocabulary ? distilled_logit(to_float(x[target]), a.soft_cap) : __int_as_float(0x7FC00000);
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) kept[k] = to_float(x[ids[k]]);
    __syncthreads();  // all reads of logits precede the marks
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) x[ids[k]] = from_float<T>(-INFINITY);
    __syncthreads();
    const bool has_others = ranks < vocabulary;
    const bool buckets = a.rule.rest != TeacherRest::renormalise && has_others;
    BlockSum others{-INFINITY, -INFINITY};
    if (has_others) others = sum_row(x, vocabulary, vector, a.soft_cap, 1.0f, shared);
    // Sums over the listed tokens: of the model at temperature 1, and of both at the temperature.
    float own_most = -INFINITY, wanted_most = -INFINITY;
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) {
      own_most = fmaxf(own_most, distilled_logit(kept[k], a.soft_cap));
      wanted_most = fmaxf(wanted_most, logprobs[k]);
    }
    own_most = most_of_block(own_most, reinterpret_cast<float*>(shared));
    wanted_most = most_of_block(wanted_most, reinterpret_cast<float*>(shared));
    double sum = 0, own = 0, wanted = 0;
    float first_at = static_cast<float>(ranks);  // exact: ranks are below 2^24
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) {
      const double below =
          static_cast<double>(distilled_logit(kept[k], a.soft_cap)) - static_cast<double>(own_most);
      sum += exp(below);
      own += exp(below / temperature);
      wanted += exp((static_cast<double>(logprobs[k]) - static_cast<double>(wanted_most)) / temperature);
      if (logprobs[k] == wanted_most) first_at = fminf(first_at, static_cast<float>(k));
    }
    first_at = -most_of_block(-first_at, reinterpret_cast<float*>(shared));
    const double normalizer =
        log_add(static_cast<double>(own_most) + log(sum_of_block(sum, shared)), others.normalizer);
    double log_q = static_cast<double>(own_most) / temperature + log(sum_of_block(own, shared));
    double log_p = static_cast<double>(wanted_most) / temperature + log(sum_of_block(wanted, shared));
    const double rest_p = buckets ? log_rest(a.rest[r]) / temperature : 0;
    const double rest_q = buckets ? others.normalizer / temperature : 0;
    if (buckets) {
      log_q = log_add(log_q, rest_q);
      log_p = log_add(log_p, rest_p);
    }
    double divergence = 0, slopes = 0;
    const auto term_of = [&](std::int64_t k) {
      return divergence_term(a.rule.beta, static_cast<double>(logprobs[k]) / temperature - log_p,
                             static_cast<double>(distilled_logit(kept[k], a.soft_cap)) / temperature - log_q);
    };
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) {
      const DivergenceTerm term = term_of(k);
      divergence += term.loss;
      slopes += term.slope;
    }
    divergence = sum_of_block(divergence, shared);
    slopes = sum_of_block(slopes, shared);
    DivergenceTerm of_rest;
    if (buckets && a.rule.rest == TeacherRest::bucket) {
      of_rest = divergence_term(a.rule.beta, rest_p - log_p, rest_q - log_q);
      divergence += of_rest.loss;
      slopes += of_rest.slope;
    }
    if (threadIdx.x == 0) {
      const std::int64_t k =
          static_cast<std::int64_t>(first_at) < ranks ? static_cast<std::int64_t>(first_at) : 0;
      const float first = distilled_logit(kept[k], a.soft_cap);
      put_row(a, r, divergence, normalizer - static_cast<double>(at_target),
              first == own_most && !(others.most > first));
    }
    if (!a.gradient) {
      for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) x[ids[k]] = from_float<T>(kept[k]);
      __syncthreads();
      continue;
    }
    const double rest_gradient = buckets ? (of_rest.slope - exp(rest_q - log_q) * slopes) / temperature : 0.0;
    const ListedGradient g =
        listed_gradient(a.rule.ratio, rest_gradient, buckets ? others.normalizer - normalizer : 0.0);
    const float norm = static_cast<float>(normalizer), factor = static_cast<float>(g.others);
    each_logit<true>(x, vocabulary, vector, [&](std::int64_t i, float value) {
      if (value == -INFINITY) return value;
      const float logit = distilled_logit(value, a.soft_cap);
      float d = expf(logit - norm) * factor;
      if (i == target) d -= static_cast<float>(g.cross);
      return d * cap_slope(logit, a.soft_cap);
    });
    __syncthreads();  // listed tokens are written last
    for (std::int64_t k = threadIdx.x; k < ranks; k += kDistillThreads) {
      const float logit = distilled_logit(kept[k], a.soft_cap);
      const double q = exp(static_cast<double>(logit) / temperature - log_q);
      double d = exp(static_cast<double>(logit) - normalizer) * g.cross +
                 a.rule.ratio * (term_of(k).slope - q * slopes) / temperature;
      if (ids[k] == target) d -= g.cross;
      x[ids[k]] = narrow<T>(static_cast<float>(d) * cap_slope(logit, a.soft_cap));
    }
    __syncthreads();  // the next row reuses shared memory
  }
}

// Like listed_kernel(), but both rows are read as a whole: for their sums, for the divergence, and for the
// gradient. The later passes find the rows in the L2 cache.
template <typename T>
__global__ void __launch_bounds__(kDistillThreads) dense_kernel(DistillationArgs a, bool vector) {
  __shared__ double shared[kDistillWarps];
  __shared__ float first_logit;
  const std::int64_t vocabulary = a.logits.cols;
  const auto temperature = static_cast<float>(a.rule.temperature);
  for (std::int64_t r = blockIdx.x; r < a.logits.rows; r += gridDim.x) {
    const std::int64_t target = a.targets[r];
    if (target < 0) {
      clear_row<T>(a, r, vector);
      continue;
    }
    T* const x = row_of<T>(a.logits, r);
    const T* const y = row_of<T>(a.teacher, r);
    const float at_target =
        target < vocabulary ? distilled_logit(to_float(x[target]), a.soft_cap) : __int_as_float(0x7FC00000);
    const BlockSum own = sum_row(x, vocabulary, vector, a.soft_cap, temperature, shared);
    const BlockSum wanted = sum_row(const_cast<T*>(y), vocabulary, vector, 0.0f, temperature, shared);
    const double normalizer = temperature == 1.0f
                                  ? own.normalizer
                                  : sum_row(x, vocabulary, vector, a.soft_cap, 1.0f, shared).normalizer;
    const auto term_of = [&](std::int64_t i, float logit) {
      return divergence_term(a.rule.beta,
                             static_cast<double>(to_float(y[i])) / a.rule.temperature - wanted.normalizer,
                             static_cast<double>(logit) / a.rule.temperature - own.normalizer);
    };
    double divergence = 0, slopes = 0;
    float first = static_cast<float>(vocabulary);  // exact: below 2^24
    each_logit<false>(x, vocabulary, vector, [&](std::int64_t i, float value) {
      const DivergenceTerm term = term_of(i, distilled_logit(value, a.soft_cap));
      divergence += term.loss;
      slopes += term.slope;
      if (to_float(y[i]) == wanted.most) first = fminf(first, static_cast<float>(i));
    });
    divergence = sum_of_block(divergence, shared);
    slopes = sum_of_block(slopes, shared);
    first = -most_of_block(-first, reinterpret_cast<float*>(shared));
    if (threadIdx.x == 0) {
      const auto best = static_cast<std::int64_t>(first);
      first_logit = best < vocabulary ? distilled_logit(to_float(x[best]), a.soft_cap) : 0.0f;
      put_row(a, r, divergence, normalizer - static_cast<double>(at_target), first_logit == own.most);
    }
    __syncthreads();  // all reads of logits precede the gradient
    if (!a.gradient) continue;
    const double cross = 1 - a.rule.ratio;
    each_logit<true>(x, vocabulary, vector, [&](std::int64_t i, float value) {
      const float logit = distilled_logit(value, a.soft_cap);
      const double z = static_cast<double>(logit);
      const double q = exp(z / a.rule.temperature - own.normalizer);
      double d = cross * exp(z - normalizer) +
                 a.rule.ratio * (term_of(i, logit).slope - q * slopes) / a.rule.temperature;
      if (i == target) d -= cross;
      return static_cast<float>(d) * cap_slope(logit, a.soft_cap);
    });
    __syncthreads();  // the next row reuses shared memory
  }
}

}  // namespace

void distillation(Stream& stream, const DistillationArgs& a) {
  if (a.logits.rows == 0) return;
  // One block per multiprocessor, so that the rows in flight stay in the L2 cache.
  const unsigned grid = grid_of(stream, a.logits.rows, 1, 1);
  const bool vector = packs(a.logits);
  with_type(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    if (a.teacher.data != nullptr) {
      dense_kernel<T>
          <<<grid, kDistillThreads, 0, octet::cuda::native(stream)>>>(a, vector && packs(a.teacher));
    } else {
      listed_kernel<T><<<grid, kDistillThreads, 0, octet::cuda::native(stream)>>>(a, vector);
    }
  });
  octet::cuda::check_launch("distillation");
}

}  // namespace octet::ops::cuda
