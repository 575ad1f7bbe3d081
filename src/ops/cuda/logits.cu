#include "octet/ops/logits.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "listed_steps.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

// Reductions of a row of logits by a block of 1024 threads. All kernels that read logits share this code, so
// that they get the same bits.

inline constexpr int kLogitThreads = 1024;
inline constexpr int kLogitWarps = kLogitThreads / 32;
static_assert(kLogitWarps == 32, "every lane has the result of one warp");

/// A token and its logit.
struct FoundLogit {
  float logit;
  std::int32_t id;
  /// True if `other` takes precedence.
  __device__ bool yields_to(const FoundLogit& other) const {
    const bool nan = isnan(logit), other_nan = isnan(other.logit);
    if (nan || other_nan) return nan == other_nan ? other.id < id : other_nan;
    return other.logit > logit || (other.logit == logit && other.id < id);
  }
};

__device__ inline FoundLogit better(const FoundLogit& a, const FoundLogit& b) {
  return a.yields_to(b) ? b : a;
}

__device__ inline FoundLogit best_of_warp(FoundLogit found) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const FoundLogit other{__shfl_xor_sync(0xFFFFFFFFu, found.logit, step),
                           __shfl_xor_sync(0xFFFFFFFFu, found.id, step)};
    found = better(found, other);
  }
  return found;
}

/// Sums over a warp, with the same order of additions in every run.
__device__ inline double sum_of_warp(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

/// Returns the largest logit of a row (the first of equal ones) in all threads. `of_warps`: shared, one entry
/// per warp.
__device__ inline FoundLogit best_of_row(const float* row, std::int64_t vocabulary, FoundLogit* of_warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Threads after the end start with the first token, like all threads.
  FoundLogit found{row[0], 0};
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kLogitThreads) {
    found = better(found, {row[i], static_cast<std::int32_t>(i)});
  }
  found = best_of_warp(found);
  if (lane == 0) of_warps[warp] = found;
  __syncthreads();
  return best_of_warp(of_warps[lane]);
}

/// Returns the sum of exp(logit / temperature - largest / temperature) over a row in all threads. A
/// temperature of 1 changes no bits. `of_warps`: as above; its previous contents must not be in use.
__device__ inline double sum_of_row(const float* row, std::int64_t vocabulary, float largest,
                                    double temperature, double* of_warps) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const double highest = static_cast<double>(largest) / temperature;
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kLogitThreads) {
    sum += exp(static_cast<double>(row[i]) / temperature - highest);
  }
  sum = sum_of_warp(sum);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  return sum_of_warp(of_warps[lane]);
}

/// Returns the log of the sum of exponentials of a row.
__device__ inline double normalizer_of_row(const float* row, std::int64_t vocabulary, float largest,
                                           double* of_warps) {
  return static_cast<double>(largest) + log(sum_of_row(row, vocabulary, largest, 1.0, of_warps));
}

// One block per row. It reads the row once for the largest logit, and again if the sum is wanted.

void best_tokens(Stream& stream, const BestTokensArgs& args);
void fill_ids(Stream& stream, const FillIdsArgs& args);

namespace {

__global__ void __launch_bounds__(kLogitThreads)
    best_tokens_kernel(const float* logits, std::int64_t ld, std::int64_t vocabulary, bool normalizers,
                       BestToken* out) {
  __shared__ FoundLogit found_by[kLogitWarps];
  __shared__ double sums[kLogitWarps];
  const float* row = logits + blockIdx.x * ld;
  const FoundLogit found = best_of_row(row, vocabulary, found_by);
  const double normalizer = normalizers ? normalizer_of_row(row, vocabulary, found.logit, sums) : 0.0;
  if (threadIdx.x == 0) out[blockIdx.x] = {.normalizer = normalizer, .logit = found.logit, .id = found.id};
}

__global__ void fill_ids_kernel(const BestToken* best, std::int32_t* ids, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && ids[i] < 0) ids[i] = best[-1 - ids[i]].id;
}

}  // namespace

void best_tokens(Stream& stream, const BestTokensArgs& args) {
  cudaStream_t native = octet::cuda::native(stream);
  best_tokens_kernel<<<static_cast<unsigned>(args.logits.rows), kLogitThreads, 0, native>>>(
      static_cast<const float*>(args.logits.data), args.logits.ld, args.logits.cols, args.normalizers,
      args.out);
  octet::cuda::check_launch("best_tokens");
}

void fill_ids(Stream& stream, const FillIdsArgs& args) {
  const std::int64_t blocks = (args.count + kLogitThreads - 1) / kLogitThreads;
  fill_ids_kernel<<<static_cast<unsigned>(blocks), kLogitThreads, 0, octet::cuda::native(stream)>>>(
      args.best, args.ids, args.count);
  octet::cuda::check_launch("fill_ids");
}

// One block per row. It reads the row to find the largest logit, to count logits by distance, to compute the
// output positions, and to list logits. Each sum is another pass. A draw takes three passes over ever smaller
// parts.

void listed_logits(Stream& stream, const ListedLogitsArgs& args);

namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Row {
  const float* x;
  std::int64_t vocabulary;
  FoundLogit best;
};

__device__ int this_warp() {
  return static_cast<int>(threadIdx.x) / 32;
}
__device__ int this_lane() {
  return static_cast<int>(threadIdx.x) % 32;
}

/// Returns the sum over this lane and all lower lanes.
template <typename T>
__device__ T sum_up_to_lane(T x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(kAll, x, step);
    if (this_lane() >= step) x += before;
  }
  return x;
}

/// Returns the sum of the counts of all earlier warps, given the shared counts of 32 warps.
__device__ int before_this_warp(const int* of_warps) {
  return __reduce_add_sync(kAll, this_lane() < this_warp() ? of_warps[this_lane()] : 0);
}

/// The number of logits at each step, except the last step.
struct Steps {
  int in_step[kListedSteps];
  int all;  ///< number of logits that may be listed
  int of_warps[kLogitWarps];
};

/// Clears the counts. Called by all threads; a barrier must follow before counting.
__device__ void clear(Steps& steps) {
  for (int i = static_cast<int>(threadIdx.x); i < kListedSteps; i += kLogitThreads) steps.in_step[i] = 0;
  if (threadIdx.x == 0) steps.all = 0;
}

__device__ void count(const Row& row, Steps& steps) {
  int mine = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < row.vocabulary; i += kLogitThreads) {
    const float x = row.x[i];
    if (!may_be_listed(x)) continue;
    ++mine;
    const int step = listed_step(row.best.logit, x);
    // The last step may contain most of a row. It is listed completely or not at all.
    if (step < kListedSteps - 1) atomicAdd(&steps.in_step[step], 1);
  }
  mine = __reduce_add_sync(kAll, mine);
  if (this_lane() == 0) atomicAdd(&steps.all, mine);
  __syncthreads();
}

/// Returns the number of listed steps in all threads. Each thread checks two steps.
__device__ int steps_to_list(Steps& steps, std::int64_t most) {
  static_assert(kListedSteps == 2 * kLogitThreads, "two steps a thread");
  const int first = steps.in_step[2 * threadIdx.x], both = first + steps.in_step[2 * threadIdx.x + 1];
  const int up_to = sum_up_to_lane(both);
  if (this_lane() == 31) steps.of_warps[this_warp()] = up_to;
  __syncthreads();
  const int before = before_this_warp(steps.of_warps) + up_to - both;
  const int fit = __syncthreads_count(before + first <= most) + __syncthreads_count(before + both <= most);
  if (steps.all <= most) return kListedSteps;
  return fit < kListedSteps ? fit : kListedSteps - 1;
}

/// The part of [0, count) for a warp, a multiple of 32 tokens.
struct Part {
  std::int64_t begin, size;
};
__device__ Part part_of_warp(std::int64_t begin, std::int64_t count) {
  const std::int64_t size = (count + kLogitThreads - 1) / kLogitThreads * 32;
  return {begin + this_warp() * size, size};
}

/// Returns the logit of a token, or -inf after the end.
__device__ float logit_at(const Row& row, std::int64_t i) {
  return i < row.vocabulary ? row.x[i] : kNone;
}

struct Found {
  int of_warps[kLogitWarps];
  float bounds[kLogitWarps];
};

/// Lists the first `list` steps. Returns the number of listed logits in all threads, and the largest other
/// logit in `bound`.
__device__ int list_steps(const Row& row, int list, Found& found, ListedLogit* out, float& bound) {
  const Part part = part_of_warp(0, row.vocabulary);
  const auto is_listed = [&](float x) { return may_be_listed(x) && listed_step(row.best.logit, x) < list; };
  int mine = 0;
  float largest = kNone;
#pragma unroll 4
  for (std::int64_t i = part.begin + this_lane(); i < part.begin + part.size; i += 32) {
    const float x = logit_at(row, i);
    const bool listed = is_listed(x);
    mine += listed ? 1 : 0;
    largest = fmaxf(largest, listed ? kNone : x);
  }
  mine = __reduce_add_sync(kAll, mine);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, step));
  if (this_lane() == 0) found.of_warps[this_warp()] = mine, found.bounds[this_warp()] = largest;
  __syncthreads();
  int at = before_this_warp(found.of_warps);
  for (std::int64_t i = part.begin + this_lane(); mine > 0 && i < part.begin + part.size; i += 32) {
    const float x = logit_at(row, i);
    const bool listed = is_listed(x);
    const unsigned lanes = __ballot_sync(kAll, listed);
    if (listed)
      out[at + __popc(lanes & ((1u << this_lane()) - 1))] = {.logit = x, .id = static_cast<std::int32_t>(i)};
    at += __popc(lanes);
  }
  bound = found.bounds[this_lane()];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) bound = fmaxf(bound, __shfl_xor_sync(kAll, bound, step));
  return __reduce_add_sync(kAll, found.of_warps[this_lane()]);
}

/// Subtracts the probabilities of the warps' parts from `left` until a part would take it below 0. Returns
/// the index of this part, or -1. The result is the same in all threads.
__device__ int part_that_takes(double& left, const double* parts) {
  for (int i = 0; i < kLogitWarps; ++i) {
    if (left - parts[i] < 0) return i;
    left -= parts[i];
  }
  return -1;
}

/// Returns the token of a draw in all threads. Selects one of 32 parts of the vocabulary, then one of 32
/// parts of that part, then a token.
__device__ std::int32_t draw_from(const Row& row, double temperature, double sum, double left,
                                  double (*parts)[kLogitWarps]) {
  const double highest = static_cast<double>(row.best.logit) / temperature;
  const auto probability = [&](std::int64_t i) {
    return exp(static_cast<double>(logit_at(row, i)) / temperature - highest) / sum;
  };
  Part from{0, row.vocabulary};
  for (int level = 0; level < 2; ++level) {
    const Part part = part_of_warp(from.begin, from.size);
    double mine = 0.0;
    for (std::int64_t i = part.begin + this_lane(); i < part.begin + part.size; i += 32)
      mine += i < from.begin + from.size ? probability(i) : 0.0;
    mine = sum_of_warp(mine);
    if (this_lane() == 0) parts[level][this_warp()] = mine;
    __syncthreads();
    const int taken = part_that_takes(left, parts[level]);
    if (taken < 0) return row.best.id;
    from = {from.begin + taken * part.size, part.size};
  }
  for (std::int64_t i = from.begin + this_lane(); i < from.begin + from.size; i += 32) {
    const double mine = probability(i), up_to = sum_up_to_lane(mine);
    // Sums of other lanes round differently, so tokens with probability 0 are excluded.
    const unsigned taking = __ballot_sync(kAll, mine > 0 && left - up_to < 0);
    if (taking != 0) return static_cast<std::int32_t>(i) - this_lane() + __ffs(static_cast<int>(taking)) - 1;
    left -= __shfl_sync(kAll, up_to, 31);
  }
  return row.best.id;
}

__global__ void __launch_bounds__(kLogitThreads) listed_logits_kernel(ListedLogitsArgs args) {
  __shared__ FoundLogit found_by[kLogitWarps];
  __shared__ double normalizers[kLogitWarps], sums[kLogitWarps], parts[2][kLogitWarps];
  __shared__ Steps steps;
  __shared__ Found found;
  const std::int64_t r = blockIdx.x;
  clear(steps);
  Row row{static_cast<const float*>(args.logits.data) + r * args.logits.ld, args.logits.cols, {}};
  row.best = best_of_row(row.x, row.vocabulary, found_by);
  RowOfLogits told{.highest = row.best.logit, .bound = row.best.logit, .best = row.best.id};
  if (isfinite(row.best.logit)) {
    count(row, steps);
    const int list = steps_to_list(steps, args.most);
    told.count = list_steps(row, list, found, args.listed + r * args.most, told.bound);
    if (args.normalizers)
      told.normalizer = normalizer_of_row(row.x, row.vocabulary, row.best.logit, normalizers);
    const double temperature = args.temperatures[r], draw = args.draws[r];
    if (temperature > 0) {
      told.sum = sum_of_row(row.x, row.vocabulary, row.best.logit, temperature, sums);
      if (draw >= 0) {
        told.drawn = draw_from(row, temperature, told.sum, draw, parts);
        told.drawn_logit = row.x[told.drawn];
      }
    }
  }
  if (threadIdx.x == 0) args.rows[r] = told;
}

}  // namespace

void listed_logits(Stream& stream, const ListedLogitsArgs& args) {
  cudaStream_t native = octet::cuda::native(stream);
  listed_logits_kernel<<<static_cast<unsigned>(args.logits.rows), kLogitThreads, 0, native>>>(args);
  octet::cuda::check_launch("listed_logits");
}

}  // namespace octet::ops::cuda
