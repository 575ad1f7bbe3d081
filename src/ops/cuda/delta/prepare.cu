// Everything of a chunk that does not depend on the state: numbers of its tokens, inverses and scores.
#include "cuda/delta/chunks.cuh"

namespace octet::ops::cuda {
namespace {

/// Pitch of square matrices in fp32. Rows start on 16-byte boundaries.
constexpr int kSquare = kChunk + 4;
/// Rows and pitch of sums between two steps of an inversion.
constexpr int kHalf = kChunk / 2, kHalfPitch = kHalf + 1;

/// Adds ROWS rows of `a` times a column of SIZE elements. Rows of `a` start at multiples of four elements.
template <int SIZE, int ROWS>
__device__ inline void add_dots(float (&sums)[ROWS], const float* a, const float* column, int pitch) {
#pragma unroll
  for (int k = 0; k < SIZE; k += 4) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = column[(k + e) * pitch];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const float4 four = *reinterpret_cast<const float4*>(a + r * kSquare + k);
      sums[r] = fmaf(four.x, x[0], sums[r]);
      sums[r] = fmaf(four.y, x[1], sums[r]);
      sums[r] = fmaf(four.z, x[2], sums[r]);
      sums[r] = fmaf(four.w, x[3], sums[r]);
    }
  }
}

/// Fills the blocks of an inverse below its diagonal blocks of SIZE rows, for each pair of blocks:
///   X21 = -X22 (A21 X11)
/// A thread has some rows of one column.
template <int SIZE>
__device__ inline void join_inverses(const float* a, float* x, float* between) {
  constexpr int rows = kHalf * SIZE / kDeltaThreads;
  const int col = static_cast<int>(threadIdx.x) % SIZE, half = static_cast<int>(threadIdx.x) / SIZE * rows;
  const int first = half / SIZE * SIZE;                       // first row of the pair in `between`
  const int top = 2 * first, low = top + SIZE + half % SIZE;  // first rows of X11 and of the thread
  float sums[rows] = {};
  add_dots<SIZE>(sums, a + low * kSquare + top, x + top * kSquare + top + col, kSquare);
#pragma unroll
  for (int r = 0; r < rows; ++r) between[(half + r) * kHalfPitch + col] = sums[r];
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rows; ++r) sums[r] = 0.0f;
  add_dots<SIZE>(sums, x + low * kSquare + top + SIZE, between + first * kHalfPitch + col, kHalfPitch);
#pragma unroll
  for (int r = 0; r < rows; ++r) x[(low + r) * kSquare + top + col] = -sums[r];
  __syncthreads();
}

/// x = (I + a)⁻¹ for a strictly lower triangular matrix. The upper triangle of `x` is zero before. Diagonal
/// blocks of 16 rows are inverted by substitution, then blocks are joined. Warps that substitute nothing call
/// `meanwhile`. Called by all threads after a barrier; ends with one.
template <typename F>
__device__ inline void invert(const float* a, float* x, float* between, F meanwhile) {
  constexpr int block = 16;
  if (threadIdx.x < kChunk) {
    const int first = static_cast<int>(threadIdx.x) / block * block,
              col = static_cast<int>(threadIdx.x) % block;
    float own[block];
#pragma unroll
    for (int r = 0; r < block; ++r) {
      float sum = r == col ? 1.0f : 0.0f;
#pragma unroll
      for (int k = 0; k < r; k += 4) {
        const float4 four = *reinterpret_cast<const float4*>(a + (first + r) * kSquare + first + k);
        const float row[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (k + e < r) sum = fmaf(-row[e], own[k + e], sum);
        }
      }
      own[r] = sum;
    }
#pragma unroll
    for (int r = 0; r < block; ++r) x[(first + r) * kSquare + first + col] = own[r];
  } else {
    meanwhile();
  }
  __syncthreads();
  join_inverses<block>(a, x, between);
  join_inverses<2 * block>(a, x, between);
}

/// Sums of decays, and beta, for the tokens of a chunk. Called by one warp. Later tokens get the last sum.
__device__ inline void sum_decays(const float* log_decay, const float* beta, std::int64_t heads, int tokens,
                                  double* decays, float* betas) {
  // exp(-90) is zero next to any result, and bounds keep sums exact after a decay to zero.
  constexpr float most = -90.0f;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double before = 0.0;
#pragma unroll
  for (int half = 0; half < kChunk; half += kWarp) {
    const int i = half + lane;
    const float g = i < tokens ? log_decay[i * heads] : 0.0f;
    double sum = static_cast<double>(g < most ? most : g);
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const double other = __shfl_up_sync(0xFFFFFFFFu, sum, offset);
      if (lane >= offset) sum += other;
    }
    decays[i] = before + sum;
    betas[i] = i < tokens ? beta[i * heads] : 0.0f;
    before += __shfl_sync(0xFFFFFFFFu, sum, kWarp - 1);
  }
}

/// Returns the sum of squares of a row of a tile, for the four threads of the row.
template <int COLS, typename T>
__device__ inline float row_squares(const T* tile) {
  float sum = 0.0f;
#pragma unroll 4
  for (int col = static_cast<int>(threadIdx.x) % 4 * 2; col < COLS; col += 8) {
    const float2 x = load_pair(tile + col);
    sum = fmaf(x.x, x.x, sum);
    sum = fmaf(x.y, x.y, sum);
  }
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}

template <typename T, int KD>
struct PrepareCut {
  static constexpr int pitch = tile_pitch<T>(KD), tile = kChunk * pitch;
  static constexpr int tiles = 2 * tile * static_cast<int>(sizeof(T));
  static constexpr int squares =
      (2 * kChunk * kSquare + kHalf * kHalfPitch) * static_cast<int>(sizeof(float));
  static constexpr int bytes = tiles > squares ? tiles : squares;  // squares replace tiles
};

/// Block (chunk number, key head).
template <typename T, int KD>
__global__ void __launch_bounds__(kDeltaThreads, KD <= 128 ? 3 : 1)
    prepare_kernel(ConstMatrix qkv, const float* log_decay, const float* beta, DeltaHeads heads,
                   Documents documents, DeltaWork<T> work, bool vector) {
  using Cut = PrepareCut<T, KD>;
  __shared__ double decays_of[2][kChunk];  // of two heads
  __shared__ float betas_of[2][kChunk], key_norms[kChunk], query_norms[kChunk];
  const ChunkPlace chunk = find_chunk(documents.cu_seqlens, documents.count, blockIdx.x);
  if (chunk.tokens == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  T* const keys = reinterpret_cast<T*>(dynamic_shared());
  T* const queries = keys + Cut::tile;
  copy_part<kChunk, KD, kDeltaThreads>(keys, keys_of<T>(qkv, heads, chunk, blockIdx.y, vector));
  copy_part<kChunk, KD, kDeltaThreads>(queries, queries_of<T>(qkv, heads, chunk, blockIdx.y, vector));
  end_copies();
  const std::int64_t group = heads.value_heads / heads.key_heads;
  const auto read_head = [&](std::int64_t h) {
    const std::int64_t at = chunk.first * heads.value_heads + blockIdx.y * group + h;
    sum_decays(log_decay + at, beta + at, heads.value_heads, chunk.tokens, decays_of[h % 2], betas_of[h % 2]);
  };
  if (warp == kDeltaThreads / kWarp - 1) read_head(0);
  wait_for_copies<0>();
  __syncthreads();
  {
    const int row = thread / 4;
    const float of_key = row_squares<KD>(keys + row * Cut::pitch);
    const float of_query = row_squares<KD>(queries + row * Cut::pitch);
    if (thread % 4 == 0) {
      const bool inside = row < chunk.tokens;
      key_norms[row] = inside ? 1.0f / sqrtf(of_key + kDeltaNormEps) : 0.0f;
      query_norms[row] =
          inside ? 1.0f / sqrtf((of_query + kDeltaNormEps) * static_cast<float>(heads.key_dim)) : 0.0f;
    }
  }
  const int row0 = warp % 4 * 16, col0 = warp / 4 * 32;
  float of_queries[4][4] = {}, of_keys[4][4] = {};  // with keys
  add_two_gemms<KD, Stored::rows, Stored::rows>(of_queries, of_keys, queries + row0 * Cut::pitch,
                                                keys + row0 * Cut::pitch, Cut::pitch,
                                                keys + col0 * Cut::pitch, Cut::pitch);
  __syncthreads();
  each_pair<4>(of_queries, col0, [&](int half, int col, float& x, float& y) {
    x *= query_norms[lane_row(row0, half)] * key_norms[col];
    y *= query_norms[lane_row(row0, half)] * key_norms[col + 1];
  });
  each_pair<4>(of_keys, col0, [&](int half, int col, float& x, float& y) {
    x *= key_norms[lane_row(row0, half)] * key_norms[col];
    y *= key_norms[lane_row(row0, half)] * key_norms[col + 1];
  });
  float* const a = reinterpret_cast<float*>(dynamic_shared());
  float* const x = a + kChunk * kSquare;
  float* const between = x + kChunk * kSquare;
  for (int i = thread; i < kChunk * kSquare; i += kDeltaThreads) x[i] = 0.0f;
  for (std::int64_t h = 0; h < group; ++h) {
    const std::int64_t first = chunk.row(heads, blockIdx.y * group + h);
    const double* const decays = decays_of[h % 2];
    const float* const betas = betas_of[h % 2];
    if (thread < chunk.tokens) {
      const double c = decays[thread];
      const float in = decay_between(c, 0.0), out = decay_between(decays[chunk.tokens - 1], c);
      work.tokens[first + thread] = {.decay = c,
                                     .beta = betas[thread],
                                     .key_in = in * key_norms[thread],
                                     .query_in = in * query_norms[thread],
                                     .key_out = out * key_norms[thread],
                                     .key_norm = key_norms[thread],
                                     .query_norm = query_norms[thread]};
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int lane = thread % kWarp, row = lane_row(row0, half), col = col0 + n * 8 + lane % 4 * 2;
        float score[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float decay = col + e <= row ? decay_between(decays[row], decays[col + e]) : 0.0f;
          score[e] = decay * of_queries[n][2 * half + e];
          a[row * kSquare + col + e] = col + e < row ? betas[row] * decay * of_keys[n][2 * half + e] : 0.0f;
        }
        if (row < chunk.tokens) store_pair(work.scores + (first + row) * kChunk + col, score[0], score[1]);
      }
    }
    __syncthreads();
    invert(a, x, between, [&] {
      if (warp == kDeltaThreads / kWarp - 1 && h + 1 < group) read_head(h + 1);
    });
    for (int i = thread; i < chunk.tokens * (kChunk / kPack); i += kDeltaThreads) {
      const int row = i / (kChunk / kPack), col = i % (kChunk / kPack) * kPack;
      float values[kPack];
#pragma unroll
      for (int e = 0; e < kPack; ++e) values[e] = x[row * kSquare + col + e];
      store_pack(work.inverse + (first + row) * kChunk + col, values, kPack, true);
    }
  }
}

}  // namespace

template <typename T>
void prepare_chunks(cudaStream_t stream, const ConstMatrix& qkv, const float* log_decay, const float* beta,
                    const DeltaHeads& heads, const Documents& documents, const DeltaWork<T>& work,
                    const DeltaVector& vector) {
  const std::int64_t numbers = chunk_numbers(documents, qkv.rows);
  if (numbers == 0) return;
  with_key_columns(heads.key_dim, [&](auto columns) {
    constexpr int kColumns = columns.value;
    constexpr int bytes = PrepareCut<T, kColumns>::bytes;
    allow_delta_shared(prepare_kernel<T, kColumns>, bytes);
    const dim3 grid(static_cast<unsigned>(numbers), static_cast<unsigned>(heads.key_heads));
    prepare_kernel<T, kColumns>
        <<<grid, kDeltaThreads, bytes, stream>>>(qkv, log_decay, beta, heads, documents, work, vector.qkv);
    octet::cuda::check_launch("delta_rule");
  });
}
template void prepare_chunks<float>(cudaStream_t, const ConstMatrix&, const float*, const float*,
                                    const DeltaHeads&, const Documents&, const DeltaWork<float>&,
                                    const DeltaVector&);
template void prepare_chunks<__nv_bfloat16>(cudaStream_t, const ConstMatrix&, const float*, const float*,
                                            const DeltaHeads&, const Documents&,
                                            const DeltaWork<__nv_bfloat16>&, const DeltaVector&);

}  // namespace octet::ops::cuda
