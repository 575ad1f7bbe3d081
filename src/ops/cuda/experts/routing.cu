// Routing uses one warp per token. Weighted sums of rows use packs of eight elements.
#include "cuda/early_launch.cuh"
#include "cuda/experts/router_scores.cuh"
#include "cuda/rows.cuh"
#include "expert_limit.h"
#include "octet/ops/routing.h"

namespace octet::ops::cuda {

void route(Stream& stream, const RouteArgs& args);
void deal(Stream& stream, const DealArgs& args);
void limit_rows(Stream& stream, const LimitRowsArgs& args);
void weighted_rows(Stream& stream, const WeightedRowsArgs& args);

namespace {

constexpr int kThreads = 128;
constexpr int kTokens = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;

struct Best {
  float p;
  int expert;  ///< kMostExperts: no expert
};

/// Returns the higher-ranked of two experts: a NaN is first, then the larger value, then the lower number.
__device__ Best first_of(const Best& a, const Best& b) {
  if (b.expert == kMostExperts) return a;
  if (a.expert == kMostExperts) return b;
  const bool nan = isnan(a.p), other_nan = isnan(b.p);
  if (nan != other_nan) return nan ? a : b;
  if (!nan && a.p != b.p) return a.p > b.p ? a : b;
  return a.expert < b.expert ? a : b;
}

__device__ float max_of_warp(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, x, step);
    x = other > x ? other : x;
  }
  return x;
}

__device__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

/// Returns the best of the values that the lanes of a warp found.
__device__ Best best_of_warp(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    best = first_of(best, {__shfl_xor_sync(kAll, best.p, step), __shfl_xor_sync(kAll, best.expert, step)});
  }
  return best;
}

/// Writes the softmax of the logits x of a token to p. A lane has the experts lane, lane + 32, …
template <int MOST>
__device__ void softmax_scores(const float* x, int experts, float (&p)[MOST]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float highest = x[0];
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    p[i] = e < experts ? x[e] : -1.0f;
    if (e < experts && p[i] > highest) highest = p[i];
  }
  highest = max_of_warp(highest);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    if (e >= experts) continue;
    p[i] = expf(p[i] - highest);
    sum += p[i];
  }
  sum = sum_of_warp(sum);
  // Divide before comparing: one NaN logit makes all probabilities NaN, as on the CPU.
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i * kWarp + lane < experts) p[i] = __fdiv_rn(p[i], sum);
  }
}

/// Returns the bits i of the lane's experts in the best groups. `of_groups`: room of the warp.
template <int MOST>
__device__ unsigned experts_of_groups(const RouteArgs& a, const float (&choice)[MOST], float* of_groups) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int groups = static_cast<int>(a.groups), size = static_cast<int>(a.logits.cols) / groups;
  constexpr int kNone = static_cast<int>(kMostExperts);
  for (int g = 0; g < groups; ++g) {
    int first = kNone;
    float sum = 0.0f;
    for (int turn = 0; turn < a.group_best; ++turn) {
      Best best{0.0f, kNone};
#pragma unroll
      for (int i = 0; i < MOST; ++i) {
        const int e = i * kWarp + lane;
        if (e >= g * size && e < (g + 1) * size && e != first) best = first_of(best, {choice[i], e});
      }
      best = best_of_warp(best);
      first = best.expert;
      sum = turn == 0 ? best.p : sum + best.p;
    }
    if (lane == 0) of_groups[g] = sum;
  }
  __syncwarp();
  unsigned open = 0, left = 0xFFFFFFFFu;  // left: bits of the groups lane, lane + 32, … that are not chosen
  for (std::int64_t j = 0; j < a.taken_groups; ++j) {
    Best best{0.0f, kNone};
    for (int g = lane; g < groups; g += kWarp) {
      if ((left >> (g / kWarp) & 1u) != 0) best = first_of(best, {of_groups[g], g});
    }
    best = best_of_warp(best);
    const int group = best.expert;
    if (group % kWarp == lane) left &= ~(1u << (group / kWarp));
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      const int e = i * kWarp + lane;
      if (e >= group * size && e < (group + 1) * size) open |= 1u << i;
    }
  }
  return open;
}

/// A lane has at most MOST experts. Dynamic shared memory: a float for each group of each warp, if a part of
/// the groups is taken.
template <int MOST>
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteArgs a) {
  extern __shared__ float scores_of_groups[];
  let_next_begin();
  wait_for_previous();
  const std::int64_t token = blockIdx.x * static_cast<std::int64_t>(kTokens) + threadIdx.x / kWarp;
  if (token >= a.logits.rows) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int experts = static_cast<int>(a.logits.cols);
  const float* const x = static_cast<const float*>(a.logits.data) + token * a.logits.ld;
  const bool sigmoid = a.scores == RouterScores::sigmoid;
  float p[MOST], choice[MOST];  // scores of experts lane, lane + 32, …, without and with bias
  if (!sigmoid) softmax_scores(x, experts, p);
  unsigned open = 0;  // bits i of experts that can still be selected
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    choice[i] = 0.0f;
    if (e >= experts) continue;
    if (sigmoid) p[i] = Sigmoid(x[e]).score;
    choice[i] = a.bias == nullptr ? p[i] : p[i] + a.bias[e];
    open |= 1u << i;
  }
  const std::int32_t* const given =
      a.given == nullptr || a.given[token * a.taken] < 0 ? nullptr : a.given + token * a.taken;
  if (given == nullptr && a.taken_groups < a.groups)
    open = experts_of_groups(a, choice, scores_of_groups + threadIdx.x / kWarp * a.groups);
  float of_taken = kLeastScores;
  for (std::int64_t j = 0; j < a.taken; ++j) {
    Best best{0.0f, static_cast<int>(kMostExperts)};
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      if ((open >> i & 1u) != 0) best = first_of(best, {choice[i], i * kWarp + lane});
    }
    best = best_of_warp(best);
    if (given != nullptr) best.expert = given[j];
    float weight = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      if (i * kWarp + lane != best.expert) continue;
      open &= ~(1u << i);
      weight = p[i];
    }
    weight = __shfl_sync(kAll, weight, best.expert % kWarp);
    of_taken += weight;
    if (lane == 0) {
      a.experts[token * a.taken + j] = best.expert;
      a.weights[token * a.taken + j] = a.normalised ? weight : a.scale * weight;
    }
  }
  if (!a.normalised) return;
  __syncwarp();
  for (std::int64_t j = lane; j < a.taken; j += kWarp) {
    float* const weight = a.weights + token * a.taken + j;
    *weight = a.scale * (*weight / of_taken);
  }
}

/// The sum of a number over the earlier threads of a block, and over all threads.
struct Counted {
  int before, all;
};
template <int WARPS>
__device__ Counted count_of_block(bool mine, int (&of_warps)[WARPS]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned set = __ballot_sync(kAll, mine);
  if (lane == 0) of_warps[warp] = __popc(set);
  __syncthreads();
  Counted counted{__popc(set & ((1u << lane) - 1)), 0};
  for (int w = 0; w < WARPS; ++w) {
    if (w < warp) counted.before += of_warps[w];
    counted.all += of_warps[w];
  }
  __syncthreads();
  return counted;
}

/// One block per expert. It reads the choices of all tokens twice: first to count the rows before its own
/// rows, then to assign its rows in token order.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) deal_kernel(const DealArgs a) {
  __shared__ int of_warps[THREADS / kWarp];
  let_next_begin();
  wait_for_previous();
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int entries = static_cast<int>(a.tokens * a.taken), taken = static_cast<int>(a.taken);
  int begin = 0;
  for (int first = 0; first < entries; first += THREADS) {
    const int other = first + thread < entries ? a.experts[first + thread] : -1;
    begin += count_of_block(other >= 0 && other < expert, of_warps).all;
  }
  if (thread == 0) a.begins[expert] = begin;
  for (int first = 0; first < entries; first += THREADS) {
    const int i = first + thread;
    const bool mine = i < entries && expert_number(a.experts[i]) == expert;
    const bool kept = mine && a.experts[i] >= 0;
    const Counted counted = count_of_block(kept, of_warps);
    if (mine) {
      const int row = begin + counted.before, token = i / taken;
      int place = token * taken;
      for (int j = token * taken; j < (token + 1) * taken; ++j)
        place += expert_number(a.experts[j]) < expert ? 1 : 0;
      if (kept) a.row_tokens[row] = token;
      a.places[place] = kept ? row : -1;
      a.place_weights[place] = kept ? a.weights[i] : 0.0f;
    }
    begin += counted.all;
  }
  if (thread == 0 && expert + 1 == static_cast<int>(a.count)) a.begins[a.count] = begin;
}

constexpr int kLimitThreads = 256;  // one for each value of a byte

/// Returns the choice of an expert by a token.
__device__ int choice_of(const LimitRowsArgs& a, int row, int expert) {
  int i = a.row_tokens[row] * static_cast<int>(a.taken);
  while (a.experts[i] != expert) ++i;
  return i;
}
__device__ unsigned order_of(const LimitRowsArgs& a, int choice) {
  return weight_order(__float_as_uint(a.weights[choice]));
}

/// One block per expert. It finds the order of the last kept weight, byte by byte from the highest, and then
/// drops rows with a lower order, and the last rows with this order.
__global__ void __launch_bounds__(kLimitThreads) limit_kernel(const LimitRowsArgs a) {
  __shared__ int counts[kLimitThreads];
  __shared__ unsigned shared_last;
  __shared__ int shared_left;
  __shared__ int of_warps[kLimitThreads / kWarp];
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int begin = a.begins[expert], end = a.begins[expert + 1];
  if (end - begin <= a.capacity) return;    // whole blocks
  unsigned last = 0;                        // the known bytes of the order of the last kept weight
  int left = static_cast<int>(a.capacity);  // rows to keep among rows with these bytes
  for (int shift = 24; shift >= 0; shift -= 8) {
    counts[thread] = 0;
    __syncthreads();
    const unsigned known = shift == 24 ? 0u : 0xFFFFFFFFu << (shift + 8);
    for (int row = begin + thread; row < end; row += kLimitThreads) {
      const unsigned order = order_of(a, choice_of(a, row, expert));
      if ((order & known) == last) atomicAdd(&counts[order >> shift & 0xFFu], 1);
    }
    __syncthreads();
    if (thread == 0) {
      int byte = kLimitThreads - 1;
      while (counts[byte] < left) left -= counts[byte--];
      shared_last = last | static_cast<unsigned>(byte) << shift;
      shared_left = left;
    }
    __syncthreads();
    last = shared_last, left = shared_left;
  }
  for (int first = begin; first < end; first += kLimitThreads) {
    const int row = first + thread;
    const int choice = row < end ? choice_of(a, row, expert) : -1;
    const unsigned order = choice < 0 ? 0xFFFFFFFFu : order_of(a, choice);
    const Counted equal = count_of_block(choice >= 0 && order == last, of_warps);
    if (choice >= 0 && (order < last || (order == last && equal.before >= left)))
      a.experts[choice] = -1 - expert;
    left -= equal.all;
  }
}

/// Rows of x that a thread prefetches before it adds them.
constexpr int kRowsAhead = 8;

/// A block computes one token. VECTOR: all packs are whole.
template <typename T, bool VECTOR>
__global__ void __launch_bounds__(2 * kThreads) weigh_kernel(const WeightedRowsArgs a) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  const std::int32_t* const places = a.places + token * a.taken;
  const float* const weights = a.weights == nullptr ? nullptr : a.weights + token * a.taken;
  const int taken = static_cast<int>(a.taken);
  for (std::int64_t col = static_cast<std::int64_t>(threadIdx.x) * kPack; col < a.out.cols;
       col += 2 * kThreads * kPack) {
    const PackAt at = VECTOR ? PackAt{kPack, true} : pack_at(col, a.out.cols, false);
    float sum[kPack] = {};
    for (int first = 0; first < taken; first += kRowsAhead) {
      RawPack<T> raw[kRowsAhead];
      if constexpr (VECTOR) {
#pragma unroll
        for (int j = 0; j < kRowsAhead; ++j) {
          if (first + j < taken && places[first + j] >= 0)
            raw[j].load(row_of<T>(a.x, places[first + j]) + col);
        }
      }
#pragma unroll
      for (int j = 0; j < kRowsAhead; ++j) {
        if (first + j >= taken || places[first + j] < 0) continue;
        float x[kPack] = {};
        if constexpr (VECTOR) {
          raw[j].get(x);
        } else {
          load_pack(row_of<T>(a.x, places[first + j]) + col, x, at.n, at.whole);
        }
        const float weight = weights == nullptr ? 1.0f : weights[first + j];
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum[i] += weight * x[i];
      }
    }
    if (a.addend.data != nullptr) {
      float x[kPack] = {};
      load_pack(row_of<T>(a.addend, token) + col, x, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] = x[i] + sum[i];
    }
    store_pack(row_of<T>(a.out, token) + col, sum, at.n, at.whole);
  }
}

}  // namespace

void route(Stream& stream, const RouteArgs& args) {
  const auto blocks = static_cast<unsigned>(ceil_div(args.logits.rows, kTokens));
  constexpr int kMost = static_cast<int>(kMostExperts) / kWarp;
  const std::int64_t experts = args.logits.cols;
  const auto kernel = experts <= 4 * kWarp    ? route_kernel<4>
                      : experts <= 16 * kWarp ? route_kernel<16>
                                              : route_kernel<kMost>;
  const std::size_t shared =
      args.taken_groups < args.groups ? static_cast<std::size_t>(kTokens * args.groups) * sizeof(float) : 0;
  launch_early_if(few_rows(args.logits.rows), kernel, dim3(blocks), kThreads, shared,
                  octet::cuda::native(stream), "route", args);
}

void deal(Stream& stream, const DealArgs& args) {
  constexpr int kMany = 1024;  // threads; each checks one entry at a time
  const auto launch = [&](auto kernel, int threads) {
    launch_early_if(few_rows(args.tokens), kernel, dim3(static_cast<unsigned>(args.count)), threads, 0,
                    octet::cuda::native(stream), "deal", args);
  };
  args.tokens* args.taken <= kMany ? launch(deal_kernel<kThreads>, kThreads)
                                   : launch(deal_kernel<kMany>, kMany);
}

void limit_rows(Stream& stream, const LimitRowsArgs& args) {
  limit_kernel<<<static_cast<unsigned>(args.count), kLimitThreads, 0, octet::cuda::native(stream)>>>(args);
  octet::cuda::check_launch("limit_rows");
}

void weighted_rows(Stream& stream, const WeightedRowsArgs& args) {
  if (args.out.rows == 0) return;
  const bool vector = args.out.cols % kPack == 0 && packs(args.x) && packs(args.addend) && packs(args.out);
  with_type(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = vector ? weigh_kernel<T, true> : weigh_kernel<T, false>;
    launch_early_if(few_rows(args.out.rows), kernel, dim3(static_cast<unsigned>(args.out.rows)), 2 * kThreads,
                    0, octet::cuda::native(stream), "weighted_rows", args);
  });
}

}  // namespace octet::ops::cuda
