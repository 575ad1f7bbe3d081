// Columns of the projected input of a gated delta rule, and code that kernels of its element-wise ops share.
#pragma once

#include <type_traits>

#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "octet/ops/delta_inputs.h"

namespace octet::ops::cuda {

/// Returns the column of a channel of queries, keys and values.
__device__ inline std::int64_t column_of_channel(const DeltaColumns& columns, std::int64_t c) {
  const DeltaHeads& h = columns.heads;
  if (c < h.keys()) return columns.query(c / h.key_dim) + c % h.key_dim;
  c -= h.keys();
  if (c < h.keys()) return columns.key(c / h.key_dim) + c % h.key_dim;
  c -= h.keys();
  return columns.value(c / h.value_dim) + c % h.value_dim;
}

/// The tokens of a call for decoding. Tokens of a sequence are adjacent and in order. A later copy of token 0
/// has its slot and position.
struct CachedTokens {
  const std::int32_t* slots = nullptr;
  const std::int32_t* positions = nullptr;
  std::int64_t count = 0;
  /// True if `token` belongs to the sequence of `of` and is not a copy.
  __device__ bool same(std::int64_t token, std::int64_t of) const {
    return token >= 0 && token < count && slots[token] == slots[of] &&
           positions[token] - positions[of] == token - of;
  }
  __device__ bool copy(std::int64_t token) const {
    return token > 0 && slots[token] == slots[0] && positions[token] == positions[0];
  }
};

inline constexpr int kCopyThreads = 256;
/// Block (token): writes row 0 to the rows of copies of token 0.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads) copy_first_row_kernel(Matrix rows, CachedTokens tokens) {
  let_next_begin();
  wait_for_previous();
  if (!tokens.copy(blockIdx.x)) return;
  for (std::int64_t c = threadIdx.x; c < rows.cols; c += kCopyThreads) {
    row_of<T>(rows, blockIdx.x)[c] = row_of<T>(rows, 0)[c];
  }
}
template <typename T>
void copy_first_row(Stream& stream, const Matrix& rows, const CachedTokens& tokens, const char* op) {
  if (tokens.count < 2) return;
  launch_early_if(few_rows(tokens.count), copy_first_row_kernel<T>, dim3(static_cast<unsigned>(tokens.count)),
                  kCopyThreads, 0, octet::cuda::native(stream), op, rows, tokens);
}

/// The document of a token, for a thread that reads tokens in order.
struct DocumentCursor {
  const std::int32_t* starts = nullptr;
  std::int64_t count = 0, index = 0, begin = 0, end = 0;
  /// Finds the last document that starts at or before `token`.
  __device__ DocumentCursor(const std::int32_t* cu_seqlens, std::int64_t documents, std::int64_t token)
      : starts(cu_seqlens), count(documents) {
    if (count == 0) return;
    std::int64_t high = count;
    while (high - index > 1) {
      const std::int64_t middle = (index + high) / 2;
      if (starts[middle] <= token) {
        index = middle;
      } else {
        high = middle;
      }
    }
    begin = starts[index];
    end = starts[index + 1];
  }
  /// Moves to a later token. Returns false after the last document.
  __device__ bool move_to(std::int64_t token) {
    while (token >= end && index + 1 < count) {
      ++index;
      begin = end;
      end = starts[index + 1];
    }
    return token < end;
  }
};

/// WIDTH elements of a row that move at once, in their memory format. More than one: aligned to their size.
template <typename T, int WIDTH>
struct Channels {
  static constexpr int bytes = static_cast<int>(sizeof(T)) * WIDTH;
  using Word = std::conditional_t<
      bytes % 16 == 0, uint4,
      std::conditional_t<bytes == 8, uint2, std::conditional_t<bytes == 4, unsigned, unsigned short>>>;
  static constexpr int words = bytes / static_cast<int>(sizeof(Word));
  Word word[words] = {};
  __device__ void load(const T* from) {
#pragma unroll
    for (int w = 0; w < words; ++w) word[w] = reinterpret_cast<const Word*>(from)[w];
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int w = 0; w < words; ++w) reinterpret_cast<Word*>(to)[w] = word[w];
  }
  __device__ void get(float (&to)[WIDTH]) const {
    const T* raw = reinterpret_cast<const T*>(word);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = to_float(raw[i]);
  }
  __device__ void put(const float (&from)[WIDTH]) {
    T* raw = reinterpret_cast<T*>(word);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) raw[i] = narrow<T>(from[i]);
  }
};

/// Earlier tokens of a convolution.
inline constexpr int kDeltaBefore = static_cast<int>(kDeltaTaps) - 1;
static_assert(kDeltaTaps == 4);

/// Loads the taps of WIDTH channels. `vector`: the taps of a channel are aligned to 16 bytes.
template <int WIDTH>
__device__ inline void load_taps(const float* taps, std::int64_t channel, bool vector,
                                 float (&w)[kDeltaTaps][WIDTH]) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    const float* from = taps + (channel + i) * kDeltaTaps;
    if (vector) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      w[0][i] = four.x;
      w[1][i] = four.y;
      w[2][i] = four.z;
      w[3][i] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < kDeltaTaps; ++j) w[j][i] = from[j];
    }
  }
}

/// Loads the inputs before token `first` that are in its document. Other elements of `before` stay.
template <typename T, int WIDTH>
__device__ inline void load_before(const ConstMatrix& projected, const DocumentCursor& document,
                                   std::int64_t first, std::int64_t column,
                                   float (&before)[kDeltaBefore][WIDTH]) {
#pragma unroll
  for (int j = 0; j < kDeltaBefore; ++j) {
    const std::int64_t t = first - kDeltaBefore + j;
    if (first >= document.end || t < document.begin) continue;
    Channels<T, WIDTH> raw;
    raw.load(row_of<T>(projected, t) + column);
    raw.get(before[j]);
  }
}

/// Returns the convolution of channel `i`: a chain from the oldest token to the newest.
template <int WIDTH>
__device__ inline float sum_of_taps(const float (&w)[kDeltaTaps][WIDTH],
                                    const float (&before)[kDeltaBefore][WIDTH], const float (&x)[WIDTH],
                                    int i) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kDeltaBefore; ++j) sum = __fmaf_rn(w[j][i], before[j][i], sum);
  return __fmaf_rn(w[kDeltaBefore][i], x[i], sum);
}
template <int WIDTH>
__device__ inline void shift_in(float (&before)[kDeltaBefore][WIDTH], const float (&x)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) {
    before[0][i] = before[1][i];
    before[1][i] = before[2][i];
    before[2][i] = x[i];
  }
}

}  // namespace octet::ops::cuda
