// Attention of decoding: every token's key and value go to the cache, then every token attends. Bound by
// reading the cache: a warp reads one key at a time, and the eight warps of a block share a query's keys.
#include "cuda/attention/kernels.h"
#include "cuda/attention/tiles.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kPerLane = static_cast<int>(kMostHeadDim) / 32;

struct Cached {
  const void* qkv;
  std::int64_t qkv_ld;
  const std::int32_t* slots;
  const std::int32_t* positions;
  void* k_cache;
  void* v_cache;
  std::int64_t capacity;
  void* out;
  std::int64_t out_ld;
  int q_heads, kv_heads, head_dim;
  ScoreRule rule;

  /// The host cannot see these numbers; what lies outside the cache is neither read nor written.
  __device__ bool inside(std::int64_t token) const {
    return slots[token] >= 0 && positions[token] >= 0 && positions[token] < capacity;
  }
};

template <typename T>
__global__ void __launch_bounds__(kAttentionThreads) append_kernel(const Cached args) {
  const std::int64_t token = blockIdx.x, width = static_cast<std::int64_t>(args.kv_heads) * args.head_dim;
  if (!args.inside(token)) return;
  const T* k = static_cast<const T*>(args.qkv) + token * args.qkv_ld + args.q_heads * args.head_dim;
  const std::int64_t at = (args.slots[token] * args.capacity + args.positions[token]) * width;
  for (std::int64_t i = threadIdx.x; i < width; i += kAttentionThreads) {
    static_cast<T*>(args.k_cache)[at + i] = k[i];
    static_cast<T*>(args.v_cache)[at + i] = k[width + i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kAttentionThreads) attend_kernel(const Cached args) {
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ float results[kWarps][kMostHeadDim];
  const std::int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (args.q_heads / args.kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  T* out = static_cast<T*>(args.out) + token * args.out_ld + head * args.head_dim;
  if (!args.inside(token)) {
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kAttentionThreads)
      write_value(out[i], NAN);
    return;
  }
  const std::int64_t stride = static_cast<std::int64_t>(args.kv_heads) * args.head_dim;
  const std::int64_t base = args.slots[token] * args.capacity * stride + kv_head * args.head_dim;
  const T* keys = static_cast<const T*>(args.k_cache) + base;
  const T* values = static_cast<const T*>(args.v_cache) + base;
  const T* q = static_cast<const T*>(args.qkv) + token * args.qkv_ld + head * args.head_dim;
  float query[kPerLane], result[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    query[i] = lane + 32 * i < args.head_dim ? read_value(q[lane + 32 * i]) : 0.0f;
    result[i] = 0.0f;
  }
  const std::int64_t last = args.positions[token];
  float maximum = kLowest, sum = 0.0f;
  for (std::int64_t j = args.rule.first_key(last, 0) + warp; j <= last; j += kWarps) {
    float product = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i < args.head_dim) {
        product = fmaf(query[i], read_value(keys[j * stride + lane + 32 * i]), product);
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xFFFFFFFFu, product, step);
    float slope;
    const float score = args.rule.score(product, slope);
    const float highest = fmaxf(maximum, score);
    const float factor = expf(maximum - highest), weight = expf(score - highest);
    maximum = highest;
    sum = sum * factor + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i < args.head_dim) {
        result[i] = fmaf(weight, read_value(values[j * stride + lane + 32 * i]), result[i] * factor);
      }
    }
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    sums[warp] = sum;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < args.head_dim) results[warp][lane + 32 * i] = result[i];
  }
  __syncthreads();
  float highest = kLowest;
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, maxima[w]);
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += sums[w] * expf(maxima[w] - highest);
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kAttentionThreads) {
    float x = 0.0f;
    for (int w = 0; w < kWarps; ++w) x += results[w][i] * expf(maxima[w] - highest);
    write_value(out[i], x / total);
  }
}

template <typename T>
void launch(cudaStream_t stream, const Cached& args, std::int64_t tokens) {
  append_kernel<T><<<static_cast<unsigned>(tokens), kAttentionThreads, 0, stream>>>(args);
  octet::cuda::check_launch("cached_attention");
  attend_kernel<T><<<dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(args.q_heads)),
                     kAttentionThreads, 0, stream>>>(args);
  octet::cuda::check_launch("cached_attention");
}

}  // namespace

void own_cached_attention(cudaStream_t stream, const CachedAttentionArgs& a) {
  const Cached args{.qkv = a.qkv.data,
                    .qkv_ld = a.qkv.ld,
                    .slots = a.slots,
                    .positions = a.positions,
                    .k_cache = a.k_cache,
                    .v_cache = a.v_cache,
                    .capacity = a.capacity,
                    .out = a.out.data,
                    .out_ld = a.out.ld,
                    .q_heads = static_cast<int>(a.heads.q_heads),
                    .kv_heads = static_cast<int>(a.heads.kv_heads),
                    .head_dim = static_cast<int>(a.heads.head_dim),
                    .rule = {a.scale, a.soft_cap, a.window}};
  return a.qkv.dtype == DType::f32 ? launch<float>(stream, args, a.qkv.rows)
                                   : launch<__nv_bfloat16>(stream, args, a.qkv.rows);
}

}  // namespace octet::ops::cuda
