// Chunks of a gated delta rule: their tokens, their numbers, and what kernels read of them.
//
// With the state S before a chunk of n tokens, c_i = g_1 + … + g_i, normalised keys and queries, and
// exponentials only of differences that are at most 0:
//   scores P[i, j] = exp(c_i - c_j) q_i·k_j  for j <= i
//   inverse T = (I + A)⁻¹ with A[i, j] = beta_i exp(c_i - c_j) k_i·k_j  for j < i
//   U = T (beta (V - exp(c) K S)),  O = exp(c) Q S + P U,  S after = exp(c_n) S + Kᵀ (exp(c_n - c) U)
// Tiles in shared memory have keys and queries as they are stored. Their norms are factors of rows and
// columns in fp32, so normalisation rounds nothing.
#pragma once

#include <string>

#include "cuda/attention/shared_memory.cuh"
#include "cuda/delta/tile_gemm.cuh"
#include "cuda/delta_scratch.h"
#include "octet/base/error.h"
#include "octet/ops/delta_rule.h"

namespace octet::ops::cuda {

inline constexpr int kDeltaThreads = 256;
inline constexpr int kChunk = static_cast<int>(kDeltaChunk);

/// Numbers of a token and value head.
struct alignas(16) DeltaToken {
  double decay;  ///< c
  float beta;
  float key_in;      ///< exp(c) * key_norm
  float query_in;    ///< exp(c) * query_norm
  float key_out;     ///< exp(c_n - c) * key_norm
  float key_norm;    ///< 1 / |k|
  float query_norm;  ///< 1 / (|q| sqrt(key_dim))
};
static_assert(sizeof(DeltaToken) == kDeltaTokenBytes);

/// Returns exp(later - earlier) of two sums of decays. Rounding may not make it more than 1.
__device__ inline float decay_between(double later, double earlier) {
  const auto x = static_cast<float>(later - earlier);
  return expf(x > 0.0f ? 0.0f : x);  // keeps NaN
}

/// The arrays of delta_scratch().
template <typename T>
struct DeltaWork {
  DeltaToken* tokens;
  T* inverse;
  T* scores;
  T* d_states;
};
template <typename T>
DeltaWork<T> delta_work(const Workspace& workspace, const DeltaHeads& heads, std::int64_t tokens) {
  const DeltaScratch at = delta_scratch(heads, sizeof(T) == 2 ? DType::bf16 : DType::f32, tokens);
  auto* const data = static_cast<std::uint8_t*>(workspace.data);
  return {.tokens = reinterpret_cast<DeltaToken*>(data),
          .inverse = reinterpret_cast<T*>(data + at.inverse),
          .scores = reinterpret_cast<T*>(data + at.scores),
          .d_states = reinterpret_cast<T*>(data + at.d_states)};
}

/// Which matrices have rows on 16-byte boundaries.
struct DeltaVector {
  bool qkv = false, out = false, d_qkv = false, states = false;
};

/// A chunk of a document.
struct ChunkPlace {
  std::int64_t first = 0;  ///< token
  std::int64_t state = 0;  ///< number of the state after the chunk; the state before it has state - 1
  int tokens = 0;          ///< 0: there is no such chunk
  bool starts = false;     ///< the document starts with this chunk
  bool ends = false;       ///< the document ends with this chunk
  /// First row of a value head in arrays of DeltaWork.
  __device__ std::int64_t row(const DeltaHeads& heads, std::int64_t head) const {
    return first * heads.value_heads + head * tokens;
  }
};
/// The tokens of a document.
struct DocumentSpan {
  std::int64_t begin = 0, end = 0;
  __device__ DocumentSpan(const std::int32_t* cu_seqlens, std::int64_t document)
      : begin(cu_seqlens[document]), end(cu_seqlens[document + 1]) {}
  __device__ std::int64_t chunks() const { return (end - begin + kChunk - 1) / kChunk; }
  /// Returns chunk `index`. Before the first chunk and after the last one, there are chunks without tokens.
  __device__ ChunkPlace chunk(std::int64_t index) const {
    const std::int64_t first = begin + index * kChunk, left = end - first;
    if (index < 0 || left <= 0) return {};
    return {.first = first,
            .state = begin / kChunk + index,
            .tokens = left < kChunk ? static_cast<int>(left) : kChunk,
            .starts = index == 0,
            .ends = left <= kChunk};
  }
};

/// Upper limit of chunk numbers. The first chunk of document d has number (cu_seqlens[d] + 63 d) / 64. Some
/// numbers have no chunk.
inline std::int64_t chunk_numbers(const Documents& documents, std::int64_t tokens) {
  return documents.count == 0 ? 0 : (tokens + documents.count * (kChunk - 1)) / kChunk;
}
/// Returns the chunk with a number. Called by all lanes of a warp, which search the documents together.
__device__ inline ChunkPlace find_chunk(const std::int32_t* cu_seqlens, std::int64_t documents,
                                        std::int64_t number) {
  const std::int64_t lane = threadIdx.x % kWarp;
  const auto first_number = [&](std::int64_t d) { return (cu_seqlens[d] + d * (kChunk - 1)) / kChunk; };
  // The document is one of `count` documents from `low` on: the last one that starts at or before the number.
  std::int64_t low = 0, count = documents;
  while (count > 1) {
    const std::int64_t step = (count + kWarp - 1) / kWarp, offset = lane * step;
    const bool before = offset < count && first_number(low + offset) <= number;
    const int last = __popc(__ballot_sync(0xFFFFFFFFu, before)) - 1;
    low += last * step;
    count = min(step, count - last * step);
  }
  return DocumentSpan(cu_seqlens, low).chunk(number - first_number(low));
}

/// Parts of qkv for a chunk.
template <typename T>
__device__ inline Part<T> queries_of(const ConstMatrix& qkv, const DeltaHeads& heads, const ChunkPlace& chunk,
                                     std::int64_t key_head, bool vector) {
  return {.data = row_of<T>(qkv, chunk.first) + key_head * heads.key_dim,
          .ld = qkv.ld,
          .rows = chunk.tokens,
          .cols = static_cast<int>(heads.key_dim),
          .vector = vector};
}
template <typename T>
__device__ inline Part<T> keys_of(const ConstMatrix& qkv, const DeltaHeads& heads, const ChunkPlace& chunk,
                                  std::int64_t key_head, bool vector) {
  Part<T> part = queries_of<T>(qkv, heads, chunk, key_head, vector);
  part.data += heads.keys();
  return part;
}
/// Some columns of the rows of a chunk. `column`: first column in the matrix.
template <typename T, typename M>
__device__ inline Part<T> columns_of(const M& m, const ChunkPlace& chunk, std::int64_t column, int cols,
                                     bool vector) {
  return {.data = row_of<T>(m, chunk.first) + column,
          .ld = m.ld,
          .rows = chunk.tokens,
          .cols = cols,
          .vector = vector};
}
/// The inverse or the scores of a chunk.
template <typename T>
__device__ inline Part<T> square_of(const T* squares, const DeltaHeads& heads, const ChunkPlace& chunk,
                                    std::int64_t head) {
  return {.data = squares + chunk.row(heads, head) * kChunk,
          .ld = kChunk,
          .rows = chunk.tokens,
          .cols = kChunk,
          .vector = true};
}
/// Starts copies of the numbers of a chunk's tokens. Tokens after the chunk get zeros.
__device__ inline void copy_tokens(DeltaToken* to, const DeltaToken* tokens, const DeltaHeads& heads,
                                   const ChunkPlace& chunk, std::int64_t head) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 2 * kChunk) return;
  uint4* const at = reinterpret_cast<uint4*>(to) + i;
  if (i / 2 < chunk.tokens) {
    copy_16(at, reinterpret_cast<const uint4*>(tokens + chunk.row(heads, head)) + i);
  } else {
    *at = make_uint4(0, 0, 0, 0);
  }
}

/// Tiles of the kernels that pass a state through the chunks of a document. A block has VS columns of the
/// values. bf16 keys of the next chunk are copied while the current ones are read.
template <typename T, int KD, int VS>
struct ScanCut {
  static constexpr bool ahead = sizeof(T) == 2;
  static constexpr int key_pitch = tile_pitch<T>(KD), square_pitch = tile_pitch<T>(kChunk);
  static constexpr int pitch = tile_pitch<T>(VS);
  static constexpr int keys = kChunk * key_pitch, state = KD * pitch, square = kChunk * square_pitch;
  static constexpr int values = kChunk * pitch;
  static constexpr int elements = (ahead ? 3 : 2) * keys + state + 2 * square + 4 * values;
  static constexpr int token_bytes = 2 * kChunk * static_cast<int>(sizeof(DeltaToken));
  static constexpr int bytes = token_bytes + elements * static_cast<int>(sizeof(T));
  /// Tiles of a warp: four warps share the rows of a tile, and `parts` share its columns.
  static constexpr int parts = VS > 64 ? 4 : 2, threads = parts * 4 * kWarp;
  static constexpr int state_tiles = KD / 64, value_tiles = VS / (8 * parts);
  static constexpr int blocks = bytes <= 113 * 1024 && KD <= 128 ? 2 : 1;
};
/// Calls f with an integral constant: the columns of the values of a block. Wide blocks read less in total.
/// Narrow blocks fill the GPU with few documents: two fit on a multiprocessor, and hide the waits of each
/// other. Bits do not depend on the choice.
template <typename T, int KD, typename F>
void with_value_columns(const DeltaHeads& heads, const Documents& documents, F f) {
  if constexpr (sizeof(T) == 4) {
    f(std::integral_constant<int, 16>{});
  } else {
    const auto blocks = [&](std::int64_t columns) {
      return documents.count * heads.value_heads * ceil_div(heads.value_dim, columns);
    };
    if constexpr (KD > 128) {
      if (blocks(64) >= multiprocessors()) return f(std::integral_constant<int, 64>{});
    } else {
      const bool narrow_fits = blocks(32) <= 2 * multiprocessors();
      if (heads.value_dim > 64 && !narrow_fits) return f(std::integral_constant<int, 128>{});
    }
    f(std::integral_constant<int, 32>{});
  }
}

/// Computes the numbers of tokens, inverses and scores of all chunks.
template <typename T>
void prepare_chunks(cudaStream_t stream, const ConstMatrix& qkv, const float* log_decay, const float* beta,
                    const DeltaHeads& heads, const Documents& documents, const DeltaWork<T>& work,
                    const DeltaVector& vector);

/// Allows a kernel to use more shared memory than by default. Throws Error if the GPU has too little.
template <typename... Parameters>
void allow_delta_shared(void (*kernel)(Parameters...), int bytes) {
  const int most = most_shared_bytes();
  if (bytes > most) {
    throw Error({.what = "this GPU has too little shared memory for a delta rule with heads of this width",
                 .expected = std::to_string(bytes) + " bytes (compute capability 9.0 or 10.0)",
                 .found = std::to_string(most) + " bytes",
                 .fix = "train on another GPU, or on the CPU"});
  }
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "asking for shared memory");
}

/// Calls f with an integral constant: the columns of tiles of keys.
template <typename F>
void with_key_columns(std::int64_t key_dim, F f) {
  if (key_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (key_dim <= 128) return f(std::integral_constant<int, 128>{});
  f(std::integral_constant<int, 256>{});
}

/// Writes zeros to columns of the rows after the last document. Called by all threads of a block.
template <typename T>
__device__ inline void clear_rows(const Matrix& m, std::int64_t begin, std::int64_t column,
                                  std::int64_t cols) {
  for (std::int64_t i = threadIdx.x; i < (m.rows - begin) * cols; i += blockDim.x) {
    row_of<T>(m, begin + i / cols)[column + i % cols] = narrow<T>(0.0f);
  }
}
/// Returns the end of the last document.
__device__ inline std::int64_t end_of_documents(const Documents& documents) {
  return documents.count == 0 ? 0 : documents.cu_seqlens[documents.count];
}

}  // namespace octet::ops::cuda
