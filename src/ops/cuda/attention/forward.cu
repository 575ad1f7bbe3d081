// Forward attention by our own kernel. A block processes TILE queries of one head. It iterates over the keys
// that they see with a running maximum and sum (Dao et al. 2022, arXiv:2205.14135).
#include "cuda/attention/attention_kernels.h"
#include "cuda/attention/score_tiles.cuh"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

struct Forward {
  const void* qkv;
  std::int64_t qkv_ld;
  void* out;
  std::int64_t out_ld;
  float* lse;
  std::int64_t tokens;
  int q_heads, kv_heads, head_dim;
  DocumentMap documents;
  ScoreRule rule;
};

template <typename T, typename C>
__global__ void __launch_bounds__(kAttentionThreads) forward_kernel(const Forward args) {
  extern __shared__ float4 shared4[];
  float* queries = reinterpret_cast<float*>(shared4);
  float* rows = queries + C::TILE * C::ROW;  // keys, then values
  float* weights = rows + C::TILE * C::ROW;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (args.q_heads / args.kv_heads);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * C::TILE;
  const std::int64_t end = args.documents.end();
  const T* q = static_cast<const T*>(args.qkv) + head * args.head_dim;
  const T* k = static_cast<const T*>(args.qkv) + (args.q_heads + kv_head) * args.head_dim;
  const T* v = k + args.kv_heads * args.head_dim;

  std::int64_t first[C::PER];
  float maximum[C::PER], sum[C::PER];
#pragma unroll
  for (int r = 0; r < C::PER; ++r) {
    const std::int64_t token = begin + ty + 16 * r;
    first[r] = token < end ? args.rule.first_key(token, args.documents.start_of(token)) : token + 1;
    maximum[r] = kLowest;
    sum[r] = 0.0f;
  }
  Sums<C> result;
  result.clear();
  load_rows<C>(queries, q, args.qkv_ld, begin, end, args.head_dim);
  // Later rows start at the same key or a later key, so the first key of the first row is the first key of
  // the tile.
  const std::int64_t from = begin < end ? args.rule.first_key(begin, args.documents.start_of(begin)) : end;
  const std::int64_t last = begin + C::TILE < end ? begin + C::TILE : end;
  for (std::int64_t key = from / C::TILE * C::TILE; key < last; key += C::TILE) {
    __syncthreads();
    load_rows<C>(rows, k, args.qkv_ld, key, end, args.head_dim);
    __syncthreads();
    float s[C::PER][C::PER];
    multiply_rows<C>(queries, rows, s);
#pragma unroll
    for (int r = 0; r < C::PER; ++r) {
      const std::int64_t token = begin + ty + 16 * r;
      float highest = maximum[r];
#pragma unroll
      for (int c = 0; c < C::PER; ++c) {
        const std::int64_t j = key + tx + 16 * c;
        float slope;
        s[r][c] = args.rule.score(s[r][c], slope);
        if (j >= first[r] && j <= token) highest = fmaxf(highest, s[r][c]);
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, step));
      }
      const float factor = expf(maximum[r] - highest);
      float more = 0.0f;
#pragma unroll
      for (int c = 0; c < C::PER; ++c) {
        const std::int64_t j = key + tx + 16 * c;
        const float p = j >= first[r] && j <= token ? expf(s[r][c] - highest) : 0.0f;
        weights[(ty + 16 * r) * C::SCORE_ROW + tx + 16 * c] = p;
        more += p;
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) more += __shfl_xor_sync(0xFFFFFFFFu, more, step);
      sum[r] = sum[r] * factor + more;
      maximum[r] = highest;
#pragma unroll
      for (int quad = 0; quad < C::QUADS; ++quad) {
#pragma unroll
        for (int e = 0; e < 4; ++e) result.at[r][quad][e] *= factor;
      }
    }
    __syncthreads();
    load_rows<C>(rows, v, args.qkv_ld, key, end, args.head_dim);
    __syncthreads();
    result.add_multiplied(weights, rows);
  }
  // Tokens outside all documents see no key and get zeros.
  const auto factor = [&](int r) { return begin + ty + 16 * r < end ? 1.0f / sum[r] : 0.0f; };
  T* out = static_cast<T*>(args.out) + head * args.head_dim;
  result.write(out, args.out_ld, begin, args.tokens, args.head_dim, factor);
  if (args.lse == nullptr || tx != 0) return;
#pragma unroll
  for (int r = 0; r < C::PER; ++r) {
    const std::int64_t token = begin + ty + 16 * r;
    if (token >= args.tokens) continue;
    args.lse[head * args.tokens + token] = token < end ? maximum[r] + logf(sum[r]) : 0.0f;
  }
}

template <typename T, typename C>
void launch(cudaStream_t stream, const Forward& args) {
  constexpr int bytes = 2 * C::ROWS_BYTES + C::SCORES_BYTES;
  octet::cuda::check(
      cudaFuncSetAttribute(forward_kernel<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      "shared memory for attention");
  const dim3 grid(static_cast<unsigned>((args.tokens + C::TILE - 1) / C::TILE),
                  static_cast<unsigned>(args.q_heads));
  forward_kernel<T, C><<<grid, kAttentionThreads, bytes, stream>>>(args);
  octet::cuda::check_launch("attention");
}

template <typename T>
void launch(cudaStream_t stream, const Forward& args) {
  if (args.head_dim <= 64) return launch<T, Cut<64, 64>>(stream, args);
  if (args.head_dim <= 128) return launch<T, Cut<64, 128>>(stream, args);
  launch<T, Cut<32, 256>>(stream, args);
}

}  // namespace

void own_attention(cudaStream_t stream, const AttentionArgs& a) {
  const Forward args{.qkv = a.qkv.data,
                     .qkv_ld = a.qkv.ld,
                     .out = a.out.data,
                     .out_ld = a.out.ld,
                     .lse = a.lse,
                     .tokens = a.qkv.rows,
                     .q_heads = static_cast<int>(a.heads.q_heads),
                     .kv_heads = static_cast<int>(a.heads.kv_heads),
                     .head_dim = static_cast<int>(a.heads.head_dim),
                     .documents = {a.documents.cu_seqlens, a.documents.count},
                     .rule = {a.scale, a.soft_cap, a.window}};
  return a.qkv.dtype == DType::f32 ? launch<float>(stream, args) : launch<__nv_bfloat16>(stream, args);
}

}  // namespace octet::ops::cuda
