#include <algorithm>
#include <type_traits>

#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

/// The data of one head of one token for a warp. A lane processes the pairs (i, i + half) with i = lane, lane
/// + 32, …
struct HeadAt {
  std::int64_t head = 0;
  bool query = false;
  std::int64_t half = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const float* weight = nullptr;
};

template <typename Args>
__device__ inline HeadAt head_at(const Args& a, std::int64_t row, std::int64_t head) {
  const std::int64_t half = (a.rotated == 0 ? a.heads.head_dim : a.rotated) / 2;
  const bool query = head < a.heads.q_heads;
  return {head,
          query,
          half,
          a.cosine + a.positions[row] * half,
          a.sine + a.positions[row] * half,
          query ? a.q_weight : a.k_weight};
}

// A warp processes one head at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) normed_rope_kernel(NormedRopeArgs a) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t dim = a.heads.head_dim;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const int lane = threadIdx.x % kWarp;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = blockIdx.x * static_cast<std::int64_t>(kWarps) + threadIdx.x / kWarp;
       item < a.qkv.rows * heads; item += stride) {
    const std::int64_t row = item / heads;
    const HeadAt at = head_at(a, row, item % heads);
    T* x = row_of<T>(a.qkv, row) + at.head * dim;
    T* kept = a.raw.data ? row_of<T>(a.raw, row) + at.head * dim : nullptr;
    float squares = 0;
    for (std::int64_t i = lane; i < dim; i += kWarp) {
      const T value = x[i];
      if (kept) kept[i] = value;
      squares += to_float(value) * to_float(value);
    }
    squares = warp_reduce(squares, Plus{});
    const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(dim)) + a.eps));
    if (a.rstd && lane == 0) a.rstd[item] = rstd;
    for (std::int64_t i = lane; i < at.half; i += kWarp) {
      const float first = to_float(x[i]) * rstd * (one + at.weight[i]);
      const float second = to_float(x[at.half + i]) * rstd * (one + at.weight[at.half + i]);
      const float c = at.cosine[i], s = at.sine[i];
      x[i] = from_float<T>(first * c - second * s);
      x[at.half + i] = from_float<T>(second * c + first * s);
    }
    for (std::int64_t i = 2 * at.half + lane; i < dim; i += kWarp)
      x[i] = from_float<T>(to_float(x[i]) * rstd * (one + at.weight[i]));
  }
}

// A block owns `block` tokens. Its warps process heads in turn and sum the gradients of the weights
// separately in shared memory. The sums of the warps are added in warp order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    normed_rope_backward_kernel(NormedRopeBackwardArgs a, std::int64_t block, float* partial) {
  extern __shared__ float sums[];  // [kWarps][2 * head_dim]
  const std::int64_t dim = a.heads.head_dim;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float one = a.one_plus_weight ? 1.0f : 0.0f;
  float* own = sums + warp * 2 * dim;
  if (partial) {
    for (std::int64_t i = lane; i < 2 * dim; i += kWarp) own[i] = 0.0f;
    __syncwarp();
  }
  const std::int64_t begin = blockIdx.x * block;
  const std::int64_t end = begin + block < a.d_qkv.rows ? begin + block : a.d_qkv.rows;
  for (std::int64_t item = begin * heads + warp; item < end * heads; item += kWarps) {
    const std::int64_t row = item / heads;
    const HeadAt at = head_at(a, row, item % heads);
    T* d = row_of<T>(a.d_qkv, row) + at.head * dim;
    const T* raw = row_of<T>(a.raw, row) + at.head * dim;
    const float rstd = a.rstd[item];
    float* own_sum = own + (at.query ? 0 : dim);
    // Calls f(i, dy, xhat, j, dy, xhat) for the pairs of this lane: dy is rotated back, and xhat is the
    // normalized input.
    const auto each = [&](auto f) {
      for (std::int64_t i = lane; i < at.half; i += kWarp) {
        const float first = to_float(d[i]), second = to_float(d[at.half + i]);
        const float c = at.cosine[i], s = at.sine[i];
        f(i, first * c + second * s, to_float(raw[i]) * rstd, at.half + i, second * c - first * s,
          to_float(raw[at.half + i]) * rstd);
      }
    };
    float dot = 0;
    each([&](std::int64_t i, float dy0, float x0, std::int64_t j, float dy1, float x1) {
      if (partial) {
        own_sum[i] += dy0 * x0;
        own_sum[j] += dy1 * x1;
      }
      dot += dy0 * (one + at.weight[i]) * x0 + dy1 * (one + at.weight[j]) * x1;
    });
    // Dimensions that do not rotate.
    for (std::int64_t i = 2 * at.half + lane; i < dim; i += kWarp) {
      const float dy = to_float(d[i]), xhat = to_float(raw[i]) * rstd;
      if (partial) own_sum[i] += dy * xhat;
      dot += dy * (one + at.weight[i]) * xhat;
    }
    const float mean = __fdiv_rn(warp_reduce(dot, Plus{}), static_cast<float>(dim));
    for (std::int64_t i = 2 * at.half + lane; i < dim; i += kWarp) {
      const float xhat = to_float(raw[i]) * rstd;
      d[i] = from_float<T>(rstd * (to_float(d[i]) * (one + at.weight[i]) - xhat * mean));
    }
    each([&](std::int64_t i, float dy0, float x0, std::int64_t j, float dy1, float x1) {
      d[i] = from_float<T>(rstd * (dy0 * (one + at.weight[i]) - x0 * mean));
      d[j] = from_float<T>(rstd * (dy1 * (one + at.weight[j]) - x1 * mean));
    });
  }
  if (!partial) return;
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < 2 * dim; i += kThreads) {
    float sum = sums[i];
    for (int w = 1; w < kWarps; ++w) sum += sums[w * 2 * dim + i];
    partial[blockIdx.x * 2 * dim + i] = sum;
  }
}

__global__ void add_weight_sums_kernel(const float* partial, std::int64_t blocks, std::int64_t dim,
                                       float* d_q, float* d_k) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= 2 * dim) return;
  float* to = i < dim ? d_q : d_k;
  if (!to) return;
  float sum = 0;
  for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * 2 * dim + i];
  to[i < dim ? i : i - dim] += sum;
}

/// Values of a lane in each half of a head.
constexpr int kEach = 4;
/// Heads of a lane with loads in flight at the same time.
constexpr int kHeadsAtOnce = 4;

/// Four values in their memory format.
template <typename T>
struct Four {
  using Words = std::conditional_t<sizeof(T) == 2, uint2, uint4>;
  Words words;
  __device__ void load(const T* from) { words = *reinterpret_cast<const Words*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Words*>(to) = words; }
  __device__ void get(float (&to)[kEach]) const {
    const T* values = reinterpret_cast<const T*>(&words);
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[i] = to_float(values[i]);
  }
  __device__ void put(const float (&from)[kEach]) {
    T* values = reinterpret_cast<T*>(&words);
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[i] = from_float<T>(from[i]);
  }
};

/// Loads four floats.
__device__ inline void load_four(const float* from, float (&to)[kEach]) {
  Four<float> four;
  four.load(from);
  four.get(to);
}

/// The sum over `LANES` consecutive lanes. Only these lanes take part.
template <int LANES>
__device__ inline float sum_of_lanes(float x) {
  constexpr unsigned all = LANES == kWarp ? 0xFFFFFFFFu : (1u << LANES) - 1;
  const unsigned mask = all << (static_cast<int>(threadIdx.x) % kWarp / LANES * LANES);
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(mask, x, step);
  return x;
}

/// Data of the columns of a lane: the angles for a token, and the weights of both norms.
struct LaneColumns {
  float cosine[kEach], sine[kEach];
  float weight[2][2][kEach];  ///< of keys, then queries; for the first half, then the second
  __device__ float of(bool query, int j, int i) const { return query ? weight[1][j][i] : weight[0][j][i]; }
  template <typename Args>
  __device__ void load_weights(const Args& a, std::int64_t column) {
    const std::int64_t half = a.heads.head_dim / 2;
    const float one = a.one_plus_weight ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      load_four(a.k_weight + j * half + column, weight[0][j]);
      load_four(a.q_weight + j * half + column, weight[1][j]);
#pragma unroll
      for (int i = 0; i < kEach; ++i) weight[0][j][i] += one, weight[1][j][i] += one;
    }
  }
  template <typename Args>
  __device__ void load_angles(const Args& a, std::int64_t row, std::int64_t column) {
    const std::int64_t place = a.positions[row] * (a.heads.head_dim / 2) + column;
    load_four(a.cosine + place, cosine);
    load_four(a.sine + place, sine);
  }
};

// Like normed_rope_kernel(), for heads of 8 * LANES dimensions. LANES lanes process `span` heads of a token,
// and read the angles of the token once.
template <typename T, int LANES>
__global__ void __launch_bounds__(kThreads) normed_rope_lanes_kernel(NormedRopeArgs a, int span) {
  let_next_begin();
  wait_for_previous();
  const int heads = static_cast<int>(a.heads.q_heads + a.heads.kv_heads), chunks = (heads + span - 1) / span;
  const std::int64_t dim = a.heads.head_dim, half = dim / 2;
  const int lane = static_cast<int>(threadIdx.x) % LANES;
  const std::int64_t column = lane * kEach;
  constexpr int units = kThreads / LANES;
  LaneColumns columns;
  columns.load_weights(a, column);
  for (std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * units + threadIdx.x / LANES;
       unit < a.qkv.rows * chunks; unit += static_cast<std::int64_t>(gridDim.x) * units) {
    const std::int64_t row = unit / chunks;
    const int first = static_cast<int>(unit % chunks) * span, end = min(first + span, heads);
    columns.load_angles(a, row, column);
    T* const x = row_of<T>(a.qkv, row) + column;
    for (int begin = first; begin < end; begin += kHeadsAtOnce) {
      Four<T> raw[kHeadsAtOnce][2];
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const std::int64_t at = min(begin + h, end - 1) * dim;
        raw[h][0].load(x + at);
        raw[h][1].load(x + at + half);
      }
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int head = begin + h;
        if (head >= end) break;
        float y[2][kEach];
        raw[h][0].get(y[0]);
        raw[h][1].get(y[1]);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) squares += y[0][i] * y[0][i] + y[1][i] * y[1][i];
        squares = sum_of_lanes<LANES>(squares);
        const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, static_cast<float>(dim)) + a.eps));
        if (a.rstd && lane == 0) a.rstd[row * heads + head] = rstd;
        if (a.raw.data) {
          T* const kept = row_of<T>(a.raw, row) + head * dim + column;
          raw[h][0].store(kept);
          raw[h][1].store(kept + half);
        }
        const bool query = head < a.heads.q_heads;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float u = y[0][i] * rstd * columns.of(query, 0, i);
          const float v = y[1][i] * rstd * columns.of(query, 1, i);
          y[0][i] = u * columns.cosine[i] - v * columns.sine[i];
          y[1][i] = v * columns.cosine[i] + u * columns.sine[i];
        }
        raw[h][0].put(y[0]);
        raw[h][1].put(y[1]);
        raw[h][0].store(x + head * dim);
        raw[h][1].store(x + head * dim + half);
      }
    }
  }
}

// Like normed_rope_backward_kernel(), for heads of 8 * LANES dimensions. SUMS: gradients of the weights are
// wanted. Each group of LANES lanes sums them in registers.
template <typename T, int LANES, bool SUMS>
__global__ void __launch_bounds__(kThreads)
    normed_rope_lanes_backward_kernel(NormedRopeBackwardArgs a, std::int64_t block, int span,
                                      float* partial) {
  constexpr int units = kThreads / LANES;
  __shared__ float shared[SUMS ? units : 1][SUMS ? 16 * LANES : 1];
  const int heads = static_cast<int>(a.heads.q_heads + a.heads.kv_heads), chunks = (heads + span - 1) / span;
  const std::int64_t dim = a.heads.head_dim, half = dim / 2;
  const int lane = static_cast<int>(threadIdx.x) % LANES, own = static_cast<int>(threadIdx.x) / LANES;
  const std::int64_t column = lane * kEach;
  LaneColumns columns;
  columns.load_weights(a, column);
  float sums[2][2][kEach] = {};  // of keys, then queries
  const std::int64_t begin_row = blockIdx.x * block;
  const std::int64_t end_row = begin_row + block < a.d_qkv.rows ? begin_row + block : a.d_qkv.rows;
  for (std::int64_t unit = begin_row * chunks + own; unit < end_row * chunks; unit += units) {
    const std::int64_t row = unit / chunks;
    const int first = static_cast<int>(unit % chunks) * span, end = min(first + span, heads);
    columns.load_angles(a, row, column);
    T* const d = row_of<T>(a.d_qkv, row) + column;
    const T* const kept = row_of<T>(a.raw, row) + column;
    for (int begin = first; begin < end; begin += kHeadsAtOnce) {
      Four<T> gradient[kHeadsAtOnce][2], raw[kHeadsAtOnce][2];
      float rstds[kHeadsAtOnce];
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int head = min(begin + h, end - 1);
        gradient[h][0].load(d + head * dim);
        gradient[h][1].load(d + head * dim + half);
        raw[h][0].load(kept + head * dim);
        raw[h][1].load(kept + head * dim + half);
        rstds[h] = a.rstd[row * heads + head];
      }
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int head = begin + h;
        if (head >= end) break;
        const bool query = head < a.heads.q_heads;
        const float rstd = rstds[h];
        float dy[2][kEach], x[2][kEach];
        gradient[h][0].get(dy[0]);
        gradient[h][1].get(dy[1]);
        raw[h][0].get(x[0]);
        raw[h][1].get(x[1]);
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float u = dy[0][i], v = dy[1][i];
          dy[0][i] = u * columns.cosine[i] + v * columns.sine[i];
          dy[1][i] = v * columns.cosine[i] - u * columns.sine[i];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            x[j][i] *= rstd;
            if (SUMS) {
              // Not indexed by `query`, so that the sums stay in registers.
              const float term = dy[j][i] * x[j][i];
              sums[0][j][i] += query ? 0.0f : term;
              sums[1][j][i] += query ? term : 0.0f;
            }
            dy[j][i] *= columns.of(query, j, i);
            dot += dy[j][i] * x[j][i];
          }
        }
        const float mean = __fdiv_rn(sum_of_lanes<LANES>(dot), static_cast<float>(dim));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) dy[j][i] = rstd * (dy[j][i] - x[j][i] * mean);
          gradient[h][j].put(dy[j]);
          gradient[h][j].store(d + head * dim + j * half);
        }
      }
    }
  }
  if constexpr (SUMS) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        shared[own][j * half + column + i] = sums[1][j][i];
        shared[own][dim + j * half + column + i] = sums[0][j][i];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * dim; i += kThreads) {
      float sum = 0;
      for (int unit = 0; unit < units; ++unit) sum += shared[unit][i];
      partial[blockIdx.x * 2 * dim + i] = sum;
    }
  }
}

/// Calls act(std::integral_constant<int, lanes>) if heads have a number of dimensions that lanes of a warp
/// can share evenly, and all loads are whole. Returns whether it did.
template <typename Args, typename Act>
bool with_lanes(const Args& a, const Matrix& qkv, const ConstMatrix& raw, Act&& act) {
  if (!packs(qkv) || !packs(raw) || !packs(a.cosine) || !packs(a.sine) || !packs(a.q_weight) ||
      !packs(a.k_weight) || (a.rotated != 0 && a.rotated != a.heads.head_dim))
    return false;
  switch (a.heads.head_dim) {
    case 64:
      act(std::integral_constant<int, 8>());
      return true;
    case 128:
      act(std::integral_constant<int, 16>());
      return true;
    case 256:
      act(std::integral_constant<int, 32>());
      return true;
    default:
      return false;
  }
}

/// Returns the number of heads that lanes process for a token, so that few tokens still fill the GPU.
int span_of(std::int64_t rows, const Heads& heads) {
  const std::int64_t all = heads.q_heads + heads.kv_heads;
  return static_cast<int>(few_rows(rows) ? 1 : ceil_div(all, 2));
}

}  // namespace

void normed_rope(Stream& stream, const NormedRopeArgs& a) {
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads, items = a.qkv.rows * heads;
  if (items == 0) return;
  const int span = span_of(a.qkv.rows, a.heads);
  with_type(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto kernel, std::int64_t units, int per_block, auto... args) {
      launch_early_if(few_rows(a.qkv.rows), kernel, dim3(grid_of(stream, units, per_block)), kThreads, 0,
                      octet::cuda::native(stream), "normed_rope", args...);
    };
    const bool done = with_lanes(a, a.qkv, a.raw, [&](auto lanes) {
      launch(normed_rope_lanes_kernel<T, lanes.value>, a.qkv.rows * ceil_div(heads, span),
             kThreads / lanes.value, a, span);
    });
    if (!done) launch(normed_rope_kernel<T>, items, kWarps, a);
  });
}

void normed_rope_backward(Stream& stream, const NormedRopeBackwardArgs& a) {
  const std::int64_t rows = a.d_qkv.rows, dim = a.heads.head_dim;
  if (rows == 0) return;
  auto* partial = a.d_q_weight || a.d_k_weight ? static_cast<float*>(a.workspace.data) : nullptr;
  // Without sums, the blocks of tokens decide no result.
  const std::int64_t block =
      partial ? rms_norm_backward_block(rows) : std::min<std::int64_t>(rms_norm_backward_block(rows), 16);
  const std::int64_t blocks = ceil_div(rows, block);
  const std::size_t shared = partial ? static_cast<std::size_t>(kWarps * 2 * dim) * sizeof(float) : 0;
  const auto grid = static_cast<unsigned>(blocks);
  with_type(a.d_qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const bool done = with_lanes(a, a.d_qkv, a.raw, [&](auto lanes) {
      const auto kernel = partial ? normed_rope_lanes_backward_kernel<T, lanes.value, true>
                                  : normed_rope_lanes_backward_kernel<T, lanes.value, false>;
      kernel<<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a, block, span_of(rows, a.heads), partial);
    });
    if (done) return;
    auto* kernel = normed_rope_backward_kernel<T>;
    // Heads of more than 768 dimensions need more shared memory than the default.
    octet::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "normed_rope_backward: shared memory for the sums of a head this large");
    kernel<<<grid, kThreads, shared, octet::cuda::native(stream)>>>(a, block, partial);
  });
  octet::cuda::check_launch("normed_rope_backward");
  if (partial) {
    add_weight_sums_kernel<<<static_cast<unsigned>(ceil_div(2 * dim, 128)), 128, 0,
                             octet::cuda::native(stream)>>>(partial, blocks, dim, a.d_q_weight, a.d_k_weight);
    octet::cuda::check_launch("normed_rope_backward");
  }
  if (a.quantize.row || a.quantize.transposed || a.quantize.amax) {
    quantize(stream, QuantizeArgs{a.d_qkv, a.quantize});
  }
}

}  // namespace octet::ops::cuda
