// Backward of the routing of a mixture, and the load of its experts. One warp per token or row.
#include "cuda/experts/router_scores.cuh"
#include "cuda/rows.cuh"
#include "expert_limit.h"
#include "octet/ops/routing.h"

namespace octet::ops::cuda {

void add_load(Stream& stream, const AddLoadArgs& args);
void balance_loss(Stream& stream, const BalanceLossArgs& args);
void add_log_sums(Stream& stream, const AddLogSumsArgs& args);
void z_loss(Stream& stream, const ZLossArgs& args);
void route_backward(Stream& stream, const RouteBackwardArgs& args);
void weigh_backward(Stream& stream, const WeighBackwardArgs& args);
void gated_rows(Stream& stream, const GatedRowsArgs& args);
void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& args);

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostPerLane = static_cast<int>(kMostExperts) / kWarp;

/// Sizes of add_load(). Each block computes one partial sum per expert, so these numbers determine the bits
/// of the sums. The sums of kMostExperts experts fit into the default shared memory of a kernel.
constexpr int kLoadBlocks = static_cast<int>(kLoadParts), kLoadWarps = 4;

__device__ std::int64_t warp_of_grid() {
  return blockIdx.x * static_cast<std::int64_t>(kWarps) + threadIdx.x / kWarp;
}
__device__ int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
unsigned blocks_of_warps(std::int64_t warps) {
  return static_cast<unsigned>(ceil_div(warps, kWarps));
}

/// Calls launch(integral constant) with the smallest supported number of experts per lane.
template <typename F>
void with_experts_per_lane(std::int64_t experts, F launch) {
  if (experts <= 4 * kWarp) return launch(std::integral_constant<int, 4>{});
  if (experts <= 16 * kWarp) return launch(std::integral_constant<int, 16>{});
  launch(std::integral_constant<int, kMostPerLane>{});
}

/// p[i] = softmax(x)[i * 32 + lane], or 0 if there is no expert. route() compares the same values.
template <int MOST>
__device__ void softmax_of_warp(const float* x, int experts, float (&p)[MOST]) {
  const int lane = lane_of_warp();
  float highest = x[0];
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    p[i] = e < experts ? x[e] : 0.0f;
    if (e < experts && p[i] > highest) highest = p[i];
  }
  highest = warp_reduce(highest, Max{});
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i * kWarp + lane >= experts) continue;
    p[i] = expf(p[i] - highest);
    sum += p[i];
  }
  sum = warp_reduce(sum, Plus{});
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i * kWarp + lane < experts) p[i] = __fdiv_rn(p[i], sum);
  }
}

/// The largest logit of a token, and the sum of exp(logit - largest).
struct LogSum {
  float highest, sum;
  __device__ float log() const { return highest + logf(sum); }
};

/// Called by one warp. Returns the same values in every lane.
__device__ LogSum log_sum_of_warp(const float* x, int experts) {
  float highest = x[0];
  for (int e = lane_of_warp(); e < experts; e += kWarp) highest = x[e] > highest ? x[e] : highest;
  highest = warp_reduce(highest, Max{});
  float sum = 0.0f;
  for (int e = lane_of_warp(); e < experts; e += kWarp) sum += expf(x[e] - highest);
  return {highest, warp_reduce(sum, Plus{})};
}

/// partial[block] = the squares of the logarithms of the block's tokens, summed warp by warp.
__global__ void __launch_bounds__(kLoadWarps* kWarp)
    log_sums_kernel(const AddLogSumsArgs a, double* partial) {
  __shared__ double of_warps[kLoadWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  double sum = 0;
  for (std::int64_t token = blockIdx.x * std::int64_t{kLoadWarps} + warp; token < a.logits.rows;
       token += kLoadBlocks * kLoadWarps) {
    const float* const x = row_of<float>(a.logits, token);
    const double log = static_cast<double>(log_sum_of_warp(x, static_cast<int>(a.logits.cols)).log());
    sum += log * log;
  }
  if (lane_of_warp() == 0) of_warps[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double all = 0;
  for (int w = 0; w < kLoadWarps; ++w) all += of_warps[w];
  partial[blockIdx.x] = all;
}

__global__ void add_log_sums_kernel(const AddLogSumsArgs a, const double* partial) {
  double all = 0;
  for (int block = 0; block < kLoadBlocks; ++block) all += partial[block];
  *a.sum += all;
}

/// partial[block, e] = the probabilities of the block's tokens, summed warp by warp.
template <int MOST>
__global__ void __launch_bounds__(kLoadWarps* kWarp) load_kernel(const AddLoadArgs a, double* partial) {
  extern __shared__ double of_warps[];  // [kLoadWarps, experts]
  const int experts = static_cast<int>(a.logits.cols), lane = lane_of_warp();
  const std::int64_t first = blockIdx.x * std::int64_t{kLoadWarps} + threadIdx.x / kWarp;
  double sum[MOST] = {};
  for (std::int64_t token = first; token < a.logits.rows; token += kLoadBlocks * kLoadWarps) {
    float p[MOST];
    softmax_of_warp(row_of<float>(a.logits, token), experts, p);
#pragma unroll
    for (int i = 0; i < MOST; ++i) sum[i] += static_cast<double>(p[i]);
  }
  double* const own = of_warps + threadIdx.x / kWarp * experts;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i * kWarp + lane < experts) own[i * kWarp + lane] = sum[i];
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kLoadWarps * kWarp) {
    double all = 0;
    for (int w = 0; w < kLoadWarps; ++w) all += of_warps[w * experts + e];
    partial[blockIdx.x * static_cast<std::int64_t>(experts) + e] = all;
  }
}

__global__ void __launch_bounds__(kThreads) sum_load_kernel(const AddLoadArgs a, const double* partial) {
  const int experts = static_cast<int>(a.logits.cols);
  const int e = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (e >= experts) return;
  double all = 0;
  for (int block = 0; block < kLoadBlocks; ++block) all += partial[block * experts + e];
  a.probabilities[e] += all;
  a.counts[e] += a.begins[e + 1] - a.begins[e];
}

/// Returns the number of labels that have a loss. Called by all threads of a block.
__device__ int count_labels(const std::int32_t* targets, std::int64_t labels, int* of_warps) {
  int own = 0;
  for (std::int64_t i = threadIdx.x; i < labels; i += kThreads) own += targets[i] >= 0 ? 1 : 0;
  return block_reduce(own, of_warps, Plus{});
}

__global__ void __launch_bounds__(kThreads) z_loss_kernel(const ZLossArgs a) {
  __shared__ int counts[kWarp];
  const double labels = static_cast<double>(count_labels(a.targets, a.labels, counts));
  if (threadIdx.x != 0) return;
  const double factor = labels * a.coefficient / static_cast<double>(a.tokens);
  *a.slope = static_cast<float>(2 * factor);
  *a.loss_sum += factor * *a.sum;
}

__global__ void __launch_bounds__(kThreads) balance_kernel(const BalanceLossArgs a) {
  __shared__ int counts[kWarp];
  __shared__ double sums[kWarp];
  const int labels = count_labels(a.targets, a.labels, counts);
  const double rows = static_cast<double>(a.rows);
  const double factor = labels * a.coefficient * static_cast<double>(a.count) / (rows * rows);
  double sum = 0;
  for (std::int64_t e = threadIdx.x; e < a.count; e += kThreads) {
    sum += a.counts[e] * a.probabilities[e];
    a.d_probabilities[e] = static_cast<float>(factor * a.counts[e]);
  }
  sum = block_reduce(sum, sums, Plus{});
  if (threadIdx.x == 0) *a.loss_sum += factor * sum;
}

template <int MOST, typename T>
__global__ void __launch_bounds__(kThreads) route_back_kernel(const RouteBackwardArgs a) {
  const std::int64_t token = warp_of_grid();
  if (token >= a.logits.rows) return;  // whole warps
  const int experts = static_cast<int>(a.logits.cols), lane = lane_of_warp();
  const bool sigmoid = a.scores == RouterScores::sigmoid;
  const float* const logits = row_of<float>(a.logits, token);
  float p[MOST], d[MOST];
  if (sigmoid) {
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      const int e = i * kWarp + lane;
      p[i] = e < experts ? Sigmoid(logits[e]).score : 0.0f;
    }
  } else {
    softmax_of_warp(logits, experts, p);
  }
  unsigned chosen = 0;  // bits of the lane's experts that the token takes
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    d[i] = a.d_probabilities != nullptr && e < experts ? a.d_probabilities[e] : 0.0f;
  }
  const std::int32_t* const taken = a.experts + token * a.taken;
  const std::int32_t* const places = a.places + token * a.taken;
  float own[MOST] = {};  // gradients of the weights of the lane's experts
  for (std::int64_t j = 0; j < a.taken; ++j) {
    const int e = expert_number(taken[j]);
    // Rows of a token are in the order of their expert numbers.
    int lower = 0;
    for (std::int64_t k = lane; k < a.taken; k += kWarp) lower += expert_number(taken[k]) < e ? 1 : 0;
    lower = warp_reduce(lower, Plus{});
    const float of_weight = places[lower] < 0 ? 0.0f : a.d_weights[places[lower]];
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
      if (i * kWarp + lane != e) continue;
      own[i] = of_weight;
      chosen |= 1u << i;
    }
  }
  float sum = 0.0f, mean = 0.0f;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if ((chosen >> i & 1u) == 0) continue;
    sum += p[i];
    mean += p[i] * own[i];
  }
  sum = warp_reduce(sum, Plus{}) + kLeastScores;
  mean = __fdiv_rn(warp_reduce(mean, Plus{}), sum);
  float inner = 0.0f;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if ((chosen >> i & 1u) != 0) d[i] += a.scale * (a.normalised ? __fdiv_rn(own[i] - mean, sum) : own[i]);
    inner += p[i] * d[i];
  }
  inner = warp_reduce(inner, Plus{});
  LogSum logs{0.0f, 1.0f};
  float z = 0.0f;  // gradient of a z-loss for a logit with a probability of 1
  if (a.z_slope != nullptr) {
    logs = log_sum_of_warp(logits, experts);
    z = *a.z_slope * logs.log();
  }
  T* const out = row_of<T>(a.d_logits, token);
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    const int e = i * kWarp + lane;
    if (e >= experts) continue;
    float of_logit = sigmoid ? Sigmoid(logits[e]).slope * d[i] : p[i] * (d[i] - inner);
    if (a.z_slope != nullptr) of_logit += z * __fdiv_rn(expf(logits[e] - logs.highest), logs.sum);
    out[e] = narrow<T>(of_logit);
  }
}

/// x[0 … cols) *= factor, by one warp.
template <typename T>
__device__ void scale_row(T* x, std::int64_t cols, float factor, bool vector) {
  for (std::int64_t col = lane_of_warp() * kPack; col < cols; col += kWarp * kPack) {
    const PackAt at = pack_at(col, cols, vector);
    float values[kPack];
    load_pack(x + col, values, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = factor * values[i];
    store_pack(x + col, values, at.n, at.whole);
  }
}

/// Returns Σ x[i] * y[i] of a row in every lane. Called by one warp.
template <typename T>
__device__ double dot_row(const T* x, const T* y, std::int64_t cols, bool vector) {
  double sum = 0;
  for (std::int64_t col = lane_of_warp() * kPack; col < cols; col += kWarp * kPack) {
    const PackAt at = pack_at(col, cols, vector);
    float a[kPack], b[kPack];
    load_pack(x + col, a, at.n, at.whole);
    load_pack(y + col, b, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return warp_reduce(sum, Plus{});
}

template <typename T>
__global__ void __launch_bounds__(kThreads) weigh_back_kernel(const WeighBackwardArgs a, bool vector) {
  const std::int64_t place = warp_of_grid();
  if (place >= a.tokens * a.taken) return;  // whole warps
  const std::int64_t row = a.places[place];
  if (row < 0) return;
  T* const d = row_of<T>(a.d, row);
  const double sum = dot_row(row_of<T>(a.x, row), static_cast<const T*>(d), a.x.cols, vector);
  if (lane_of_warp() == 0) a.d_weights[row] = static_cast<float>(sum);
  scale_row(d, a.d.cols, a.weights[place], vector);
  if (a.d_y.data != nullptr) scale_row(row_of<T>(a.d_y, row), a.d_y.cols, a.weights[place], vector);
}

__device__ float sigmoid(float x) {
  return __fdiv_rn(1.0f, 1.0f + expf(-x));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gate_kernel(const GatedRowsArgs a, bool vector) {
  const std::int64_t token = warp_of_grid();
  if (token >= a.x.rows) return;
  const float gate = a.logits == nullptr ? 1.0f : sigmoid(a.logits[token]);
  const T *const x = row_of<T>(a.x, token), *const addend = row_of<T>(a.addend, token);
  T* const out = row_of<T>(a.out, token);
  for (std::int64_t col = lane_of_warp() * kPack; col < a.x.cols; col += kWarp * kPack) {
    const PackAt at = pack_at(col, a.x.cols, vector);
    float values[kPack], sum[kPack];
    load_pack(x + col, values, at.n, at.whole);
    load_pack(addend + col, sum, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum[i] = sum[i] + gate * values[i];
    store_pack(out + col, sum, at.n, at.whole);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gate_back_kernel(const GatedRowsBackwardArgs a, bool vector) {
  const std::int64_t token = warp_of_grid();
  if (token >= a.x.rows) return;
  const float gate = sigmoid(a.logits[token]);
  const T *const x = row_of<T>(a.x, token), *const d = row_of<T>(a.d_out, token);
  const double sum = dot_row(x, d, a.x.cols, vector);
  T* const d_x = row_of<T>(a.d_x, token);
  for (std::int64_t col = lane_of_warp() * kPack; col < a.x.cols; col += kWarp * kPack) {
    const PackAt at = pack_at(col, a.x.cols, vector);
    float values[kPack];
    load_pack(d + col, values, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = gate * values[i];
    store_pack(d_x + col, values, at.n, at.whole);
  }
  if (lane_of_warp() == 0)
    *row_of<T>(a.d_logits, token) = narrow<T>(gate * (1.0f - gate) * static_cast<float>(sum));
}

}  // namespace

void add_load(Stream& stream, const AddLoadArgs& a) {
  auto* const partial = static_cast<double*>(a.workspace.data);
  const auto experts = static_cast<std::size_t>(a.logits.cols);
  cudaStream_t queue = octet::cuda::native(stream);
  with_experts_per_lane(a.logits.cols, [&](auto most) {
    load_kernel<decltype(most)::value>
        <<<kLoadBlocks, kLoadWarps * kWarp, kLoadWarps * experts * sizeof(double), queue>>>(a, partial);
  });
  octet::cuda::check_launch("add_load");
  sum_load_kernel<<<static_cast<unsigned>(ceil_div(a.logits.cols, kThreads)), kThreads, 0, queue>>>(a,
                                                                                                    partial);
  octet::cuda::check_launch("add_load");
}

void balance_loss(Stream& stream, const BalanceLossArgs& a) {
  balance_kernel<<<1, kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("balance_loss");
}

void add_log_sums(Stream& stream, const AddLogSumsArgs& a) {
  auto* const partial = static_cast<double*>(a.workspace.data);
  cudaStream_t queue = octet::cuda::native(stream);
  log_sums_kernel<<<kLoadBlocks, kLoadWarps * kWarp, 0, queue>>>(a, partial);
  octet::cuda::check_launch("add_log_sums");
  add_log_sums_kernel<<<1, 1, 0, queue>>>(a, partial);
  octet::cuda::check_launch("add_log_sums");
}

void z_loss(Stream& stream, const ZLossArgs& a) {
  z_loss_kernel<<<1, kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("z_loss");
}

void route_backward(Stream& stream, const RouteBackwardArgs& a) {
  with_experts_per_lane(a.logits.cols, [&](auto most) {
    with_type(a.d_logits.dtype, [&](auto type) {
      route_back_kernel<decltype(most)::value, decltype(type)>
          <<<blocks_of_warps(a.logits.rows), kThreads, 0, octet::cuda::native(stream)>>>(a);
    });
  });
  octet::cuda::check_launch("route_backward");
}

void weigh_backward(Stream& stream, const WeighBackwardArgs& a) {
  const bool vector = packs(a.x) && packs(a.d) && packs(a.d_y);
  with_type(a.x.dtype, [&](auto type) {
    weigh_back_kernel<decltype(type)>
        <<<blocks_of_warps(a.tokens * a.taken), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("weigh_backward");
}

void gated_rows(Stream& stream, const GatedRowsArgs& a) {
  const bool vector = packs(a.x) && packs(a.addend) && packs(a.out);
  with_type(a.x.dtype, [&](auto type) {
    gate_kernel<decltype(type)>
        <<<blocks_of_warps(a.x.rows), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("gated_rows");
}

void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& a) {
  const bool vector = packs(a.x) && packs(a.d_out) && packs(a.d_x);
  with_type(a.x.dtype, [&](auto type) {
    gate_back_kernel<decltype(type)>
        <<<blocks_of_warps(a.x.rows), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("gated_rows_backward");
}

}  // namespace octet::ops::cuda
