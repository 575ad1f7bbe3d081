// Backward attention by our own kernels. Scores are recomputed from queries and keys (Dao et al. 2022,
// arXiv:2205.14135), twice. One kernel sums the gradients of a tile of queries. Another kernel sums the
// gradients of a tile of keys and values over all query heads that share them. There are no atomic additions,
// so equal inputs give equal bits.
#include "cuda/attention/attention_kernels.h"
#include "cuda/attention/score_tiles.cuh"
#include "cuda/attention/shared_memory.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

struct Backward {
  const void* qkv;
  std::int64_t qkv_ld;
  const void* out;
  std::int64_t out_ld;
  const void* d_out;
  std::int64_t d_out_ld;
  const float* lse;
  float* delta;
  void* d_qkv;
  std::int64_t d_qkv_ld;
  std::int64_t tokens;
  int q_heads, kv_heads, head_dim;
  DocumentMap documents;
  ScoreRule rule;
};

/// delta[head, token] = out · d_out, with one warp per token and head.
template <typename T>
__global__ void __launch_bounds__(kAttentionThreads) delta_kernel(const Backward args) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kAttentionThreads + threadIdx.x) / 32;
  if (item >= args.tokens * args.q_heads) return;
  const std::int64_t token = item / args.q_heads, head = item % args.q_heads;
  const T* out = static_cast<const T*>(args.out) + token * args.out_ld + head * args.head_dim;
  const T* d_out = static_cast<const T*>(args.d_out) + token * args.d_out_ld + head * args.head_dim;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < args.head_dim; i += 32) {
    sum = fmaf(read_value(out[i]), read_value(d_out[i]), sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0) args.delta[head * args.tokens + token] = sum;
}

/// Computes d_q of TILE queries of one head.
template <typename T, typename C>
__global__ void __launch_bounds__(kAttentionThreads) queries_kernel(const Backward args) {
  extern __shared__ float4 shared4[];
  float* queries = reinterpret_cast<float*>(shared4);
  float* d_outs = queries + C::TILE * C::ROW;
  float* keys = d_outs + C::TILE * C::ROW;
  float* values = keys + C::TILE * C::ROW;
  float* d_scores = values + C::TILE * C::ROW;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (args.q_heads / args.kv_heads);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * C::TILE;
  const std::int64_t end = args.documents.end();
  const T* q = static_cast<const T*>(args.qkv) + head * args.head_dim;
  const T* k = static_cast<const T*>(args.qkv) + (args.q_heads + kv_head) * args.head_dim;
  const T* v = k + args.kv_heads * args.head_dim;
  const T* d_out = static_cast<const T*>(args.d_out) + head * args.head_dim;

  std::int64_t first[C::PER];
  float lse[C::PER], delta[C::PER];
#pragma unroll
  for (int r = 0; r < C::PER; ++r) {
    const std::int64_t token = begin + ty + 16 * r;
    const bool inside = token < end;
    first[r] = inside ? args.rule.first_key(token, args.documents.start_of(token)) : token + 1;
    lse[r] = inside ? args.lse[head * args.tokens + token] : 0.0f;
    delta[r] = inside ? args.delta[head * args.tokens + token] : 0.0f;
  }
  Sums<C> result;
  result.clear();
  load_rows<C>(queries, q, args.qkv_ld, begin, end, args.head_dim);
  load_rows<C>(d_outs, d_out, args.d_out_ld, begin, end, args.head_dim);
  const std::int64_t from = begin < end ? args.rule.first_key(begin, args.documents.start_of(begin)) : end;
  const std::int64_t last = begin + C::TILE < end ? begin + C::TILE : end;
  for (std::int64_t key = from / C::TILE * C::TILE; key < last; key += C::TILE) {
    __syncthreads();
    load_rows<C>(keys, k, args.qkv_ld, key, end, args.head_dim);
    load_rows<C>(values, v, args.qkv_ld, key, end, args.head_dim);
    __syncthreads();
    float s[C::PER][C::PER], d_weights[C::PER][C::PER];
    multiply_rows<C>(queries, keys, s);
    multiply_rows<C>(d_outs, values, d_weights);
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
      const std::int64_t token = begin + ty + 16 * r;
#pragma unroll
      for (int c = 0; c < C::PER; ++c) {
        const std::int64_t j = key + tx + 16 * c;
        float slope;
        const float score = args.rule.score(s[r][c], slope);
        const bool seen = j >= first[r] && j <= token;
        const float p = seen ? expf(score - lse[r]) : 0.0f;
        d_scores[(ty + 16 * r) * C::SCORE_ROW + tx + 16 * c] =
            seen ? p * (d_weights[r][c] - delta[r]) * slope * args.rule.scale : 0.0f;
      }
    }
    __syncthreads();
    result.add_multiplied(d_scores, keys);
  }
  T* d_q = static_cast<T*>(args.d_qkv) + head * args.head_dim;
  result.write(d_q, args.d_qkv_ld, begin, args.tokens, args.head_dim, [](int) { return 1.0f; });
}

/// Computes d_k and d_v of TILE tokens of one KV head, over its query heads in order.
template <typename T, typename C>
__global__ void __launch_bounds__(kAttentionThreads) keys_kernel(const Backward args) {
  extern __shared__ float4 shared4[];
  float* keys = reinterpret_cast<float*>(shared4);
  float* values = keys + C::TILE * C::ROW;
  float* queries = values + C::TILE * C::ROW;
  float* d_outs = queries + C::TILE * C::ROW;
  float* weights = d_outs + C::TILE * C::ROW;
  float* d_scores = weights + C::TILE * C::SCORE_ROW;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int kv_head = static_cast<int>(blockIdx.y), group = args.q_heads / args.kv_heads;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * C::TILE;
  const std::int64_t end = args.documents.end();
  const T* k = static_cast<const T*>(args.qkv) + (args.q_heads + kv_head) * args.head_dim;
  const T* v = k + args.kv_heads * args.head_dim;

  // Key j is seen by the tokens i >= j of its document with i < j + window.
  std::int64_t beyond[C::PER];
  const auto seen_until = [&](std::int64_t token) {
    const std::int64_t stop = args.documents.end_of(token);
    const std::int64_t window = args.rule.window;
    return window > 0 && token + window < stop ? token + window : stop;
  };
#pragma unroll
  for (int r = 0; r < C::PER; ++r) {
    const std::int64_t token = begin + ty + 16 * r;
    beyond[r] = token < end ? seen_until(token) : token;
  }
  Sums<C> d_key, d_value;
  d_key.clear();
  d_value.clear();
  load_rows<C>(keys, k, args.qkv_ld, begin, end, args.head_dim);
  load_rows<C>(values, v, args.qkv_ld, begin, end, args.head_dim);
  const std::int64_t last_key = (begin + C::TILE < end ? begin + C::TILE : end) - 1;
  const std::int64_t stop = begin < end ? seen_until(last_key) : begin;
  for (int member = 0; member < group; ++member) {
    const int head = kv_head * group + member;
    const T* q = static_cast<const T*>(args.qkv) + head * args.head_dim;
    const T* d_out = static_cast<const T*>(args.d_out) + head * args.head_dim;
    for (std::int64_t query = begin; query < stop; query += C::TILE) {
      __syncthreads();
      load_rows<C>(queries, q, args.qkv_ld, query, end, args.head_dim);
      load_rows<C>(d_outs, d_out, args.d_out_ld, query, end, args.head_dim);
      __syncthreads();
      float s[C::PER][C::PER], d_weights[C::PER][C::PER];  // rows are keys, columns are queries
      multiply_rows<C>(keys, queries, s);
      multiply_rows<C>(values, d_outs, d_weights);
#pragma unroll
      for (int c = 0; c < C::PER; ++c) {
        const std::int64_t token = query + tx + 16 * c;
        const bool inside = token < end;
        const float lse = inside ? args.lse[head * args.tokens + token] : 0.0f;
        const float delta = inside ? args.delta[head * args.tokens + token] : 0.0f;
#pragma unroll
        for (int r = 0; r < C::PER; ++r) {
          float slope;
          const float score = args.rule.score(s[r][c], slope);
          const bool seen = token >= begin + ty + 16 * r && token < beyond[r];
          const float p = seen ? expf(score - lse) : 0.0f;
          const int at = (ty + 16 * r) * C::SCORE_ROW + tx + 16 * c;
          weights[at] = p;
          d_scores[at] = seen ? p * (d_weights[r][c] - delta) * slope * args.rule.scale : 0.0f;
        }
      }
      __syncthreads();
      d_value.add_multiplied(weights, d_outs);
      d_key.add_multiplied(d_scores, queries);
    }
  }
  T* d_k = static_cast<T*>(args.d_qkv) + (args.q_heads + kv_head) * args.head_dim;
  T* d_v = d_k + args.kv_heads * args.head_dim;
  const auto one = [](int) { return 1.0f; };
  d_key.write(d_k, args.d_qkv_ld, begin, args.tokens, args.head_dim, one);
  d_value.write(d_v, args.d_qkv_ld, begin, args.tokens, args.head_dim, one);
}

template <typename Kernel>
void allow_shared(Kernel kernel, int bytes) {
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "shared memory for attention_backward");
}

template <typename T, typename C>
void launch(cudaStream_t stream, const Backward& args) {
  const auto tiles = static_cast<unsigned>((args.tokens + C::TILE - 1) / C::TILE);
  constexpr int query_bytes = 4 * C::ROWS_BYTES + C::SCORES_BYTES;
  constexpr int key_bytes = 4 * C::ROWS_BYTES + 2 * C::SCORES_BYTES;
  allow_shared(queries_kernel<T, C>, query_bytes);
  allow_shared(keys_kernel<T, C>, key_bytes);
  const std::int64_t warps = args.tokens * args.q_heads, per_block = kAttentionThreads / 32;
  delta_kernel<T>
      <<<static_cast<unsigned>((warps + per_block - 1) / per_block), kAttentionThreads, 0, stream>>>(args);
  octet::cuda::check_launch("attention_backward");
  queries_kernel<T, C>
      <<<dim3(tiles, static_cast<unsigned>(args.q_heads)), kAttentionThreads, query_bytes, stream>>>(args);
  octet::cuda::check_launch("attention_backward");
  keys_kernel<T, C>
      <<<dim3(tiles, static_cast<unsigned>(args.kv_heads)), kAttentionThreads, key_bytes, stream>>>(args);
  octet::cuda::check_launch("attention_backward");
}

/// Launches with tile sizes `Wide` if a block has enough shared memory, else with `Narrow`.
template <typename T, typename Wide, typename Narrow>
void launch_that_fits(cudaStream_t stream, const Backward& args) {
  if (most_shared_bytes() >= 4 * Wide::ROWS_BYTES + 2 * Wide::SCORES_BYTES)
    return launch<T, Wide>(stream, args);
  launch<T, Narrow>(stream, args);
}

template <typename T>
void launch(cudaStream_t stream, const Backward& args) {
  if (args.head_dim <= 64) return launch_that_fits<T, Cut<64, 64>, Cut<32, 64>>(stream, args);
  if (args.head_dim <= 128) return launch_that_fits<T, Cut<64, 128>, Cut<32, 128>>(stream, args);
  launch_that_fits<T, Cut<32, 256>, Cut<16, 256>>(stream, args);
}

}  // namespace

void own_attention_backward(cudaStream_t stream, const AttentionBackwardArgs& a, float* delta) {
  const Backward args{.qkv = a.qkv.data,
                      .qkv_ld = a.qkv.ld,
                      .out = a.out.data,
                      .out_ld = a.out.ld,
                      .d_out = a.d_out.data,
                      .d_out_ld = a.d_out.ld,
                      .lse = a.lse,
                      .delta = delta,
                      .d_qkv = a.d_qkv.data,
                      .d_qkv_ld = a.d_qkv.ld,
                      .tokens = a.qkv.rows,
                      .q_heads = static_cast<int>(a.heads.q_heads),
                      .kv_heads = static_cast<int>(a.heads.kv_heads),
                      .head_dim = static_cast<int>(a.heads.head_dim),
                      .documents = {a.documents.cu_seqlens, a.documents.count},
                      .rule = {a.scale, a.soft_cap, a.window}};
  return a.qkv.dtype == DType::f32 ? launch<float>(stream, args) : launch<__nv_bfloat16>(stream, args);
}

}  // namespace octet::ops::cuda
