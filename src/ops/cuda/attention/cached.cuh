// Shared code of the decoding kernels: their arguments, the rows of a block, and the sum over pieces of a
// long cache.
//
// A row is one query head of one token. The rows of a block share a KV head, so the block reads its keys and
// values once. A single token (the only new token of its sequence) has its own blocks. If caches are long, it
// has one block per piece of the keys, and combine_kernel adds the pieces in order. The length of a piece
// depends on the cache length and on the number of single tokens. The block that reads the key of a single
// token also writes it to the cache. Blocks of prompts hold consecutive tokens of one or more sequences. The
// keys of prompts are already in the cache.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "block_scale.h"
#include "cuda/attention/score_tiles.cuh"
#include "cuda/early_launch.cuh"

namespace octet::ops::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

struct Cached {
  const void* qkv;
  std::int64_t qkv_ld;
  const std::int32_t* slots;
  const std::int32_t* positions;
  void* k_cache;
  void* v_cache;
  float* k_scale_inv;  ///< of an E4M3 cache
  float* v_scale_inv;
  std::int64_t row_stride;    ///< elements between the starts of two rows of keys, or of values
  const std::int32_t* pages;  ///< CachePages::table
  std::int64_t page_pitch;
  int page_shift;  ///< a page has 2^page_shift tokens; without pages, a slot is one page
  std::int64_t capacity;
  void* out;
  std::int64_t out_ld;
  int q_heads, kv_heads, head_dim;
  ScoreRule rule;
  /// A micro-batch in place of a cache: a slot is a document, and these are the first tokens of the
  /// documents.
  const std::int32_t* starts = nullptr;
  float* lse = nullptr;     ///< [q_heads, tokens]; null: not wanted
  std::int64_t tokens = 0;  ///< row length of lse
  float outside = NAN;      ///< output value of rows outside the cache

  /// The host cannot check these numbers. Data outside the cache is neither read nor written.
  __device__ bool inside(std::int64_t token) const {
    return slots[token] >= 0 && positions[token] >= 0 && positions[token] < capacity;
  }
  __host__ __device__ int group() const { return q_heads / kv_heads; }
  /// Elements between two consecutive keys of a KV head.
  __device__ std::int64_t stride() const { return static_cast<std::int64_t>(kv_heads) * head_dim; }
  /// Returns the first cache row of page `index` of a slot.
  __device__ std::int64_t page_row(std::int64_t slot, std::int64_t index) const {
    if (pages == nullptr) return starts == nullptr ? slot * capacity : starts[slot];
    return static_cast<std::int64_t>(pages[slot * page_pitch + index]) << page_shift;
  }
  /// Returns the cache row of a position of a slot.
  __device__ std::int64_t row(std::int64_t slot, std::int64_t position) const {
    const std::int64_t index = position >> page_shift;
    return page_row(slot, index) + position - (index << page_shift);
  }
  /// True if aligned runs of `positions` positions (a power of two) are in consecutive rows.
  __device__ bool together(int positions) const { return (std::int64_t{1} << page_shift) >= positions; }
  /// Returns the index of the first element of a key or value of a KV head.
  __device__ std::int64_t element(std::int64_t row, int kv_head) const {
    return row * row_stride + static_cast<std::int64_t>(kv_head) * head_dim;
  }
  /// Writes the log of the sum of exponentials of a row. `highest` and the exponentials in `total` are in
  /// base 2.
  __device__ void leave_lse(std::int64_t token, int head, float highest, float total) const {
    constexpr float log2 = 0.693147180559945309f;
    if (lse != nullptr) lse[head * tokens + token] = (highest + log2f(total)) * log2;
  }
};

/// Maps consecutive positions of a slot to cache rows. Reads the page table once per page.
class RowsInTurn {
 public:
  __device__ RowsInTurn(const Cached& args, std::int64_t slot) : args_(args), slot_(slot) {}
  __device__ std::int64_t operator()(std::int64_t position) {
    const std::int64_t index = position >> args_.page_shift;
    if (index != index_) {
      index_ = index;
      first_ = args_.page_row(slot_, index) - (index << args_.page_shift);
    }
    return first_ + position;
  }

 private:
  const Cached& args_;
  std::int64_t slot_, index_ = -1, first_ = 0;
};

/// Decodes an E4M3 code and multiplies it by a power of two.
__device__ inline float decoded(std::uint8_t code, float scale) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale;
}
/// Decodes two codes, with the first in the lower byte.
__device__ inline float2 decoded_pair(std::uint16_t codes, float scale) {
  const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  return make_float2(both.x * scale, both.y * scale);
}

/// Encodes a key, or a value, of one KV head in E4M3. Called by one warp.
template <typename T>
__device__ void encode_head(const T* from, int head_dim, std::uint8_t* to, float* scale_inv) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned most = 0;
  for (int i = lane; i < head_dim; i += 32)
    most = max(most, __float_as_uint(read_value(from[i])) & 0x7FFFFFFFu);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
  const std::int32_t e = block_exponent(most);
  for (int i = lane; i < head_dim; i += 32) {
    to[i] = __nv_cvt_float_to_fp8(read_value(from[i]) * power_of_two(-e), __NV_SATFINITE, __NV_E4M3);
  }
  if (lane == 0) *scale_inv = power_of_two(e);
}

/// Sums of one row over some keys: the highest score, the sum of weights, and the weighted sum of values.
/// Scores and exponentials are in base 2. Weights are relative to `highest`.
struct PieceSum {
  float highest = kLowest, total = 0.0f, value = 0.0f;
};

/// Combines `count` sums, at most MOST, in order. `read(i)` returns sum i.
template <int MOST, typename Read>
__device__ PieceSum put_together(int count, const Read& read) {
  PieceSum all;
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i < count) all.highest = fmaxf(all.highest, read(i).highest);
  }
#pragma unroll
  for (int i = 0; i < MOST; ++i) {
    if (i >= count) continue;
    const PieceSum one = read(i);
    const float factor = exp2f(one.highest - all.highest);
    all.total = fmaf(one.total, factor, all.total);
    all.value = fmaf(one.value, factor, all.value);
  }
  return all;
}

/// The tokens of a launch, and the pieces of their caches.
struct Span {
  std::int64_t first = 0, count = 0;
  std::int64_t piece = 0;  ///< keys of a piece, a multiple of 64
  int pieces = 1;
  float* values = nullptr;  ///< [count, q_heads, pieces, head_dim]: sums of values; only with pieces
  float* sums = nullptr;    ///< [count, q_heads, pieces, 2]: maximum (base 2) and sum of weights

  __device__ std::int64_t place(std::int64_t token, int head, int at, const Cached& args) const {
    return ((token - first) * args.q_heads + head) * pieces + at;
  }
  /// True if one block reads all keys of a token. This block then writes the output.
  __device__ bool of_one_block(std::int64_t first_key, std::int64_t last_key) const {
    return first_key / piece == last_key / piece;
  }
  /// Joins each `count` consecutive pieces into one piece.
  void join(int count) {
    piece *= count;
    pieces = (pieces + count - 1) / count;
  }
  /// Stores column `d` of the sums of a piece for combine_kernel, at an index from place().
  __device__ void leave(const PieceSum& sum, std::int64_t place, int head_dim, int d) const {
    values[place * head_dim + d] = sum.value;
    if (d > 0) return;
    sums[2 * place] = sum.highest;
    sums[2 * place + 1] = sum.total;
  }
};

/// The rows of a block, [0, rows). Row r is head `head(r)` of token `token(r)`.
struct TileRows {
  std::int64_t begin;  ///< token * group + index of the head in its group, of row 0
  int rows;
  int group, kv_head;
  __device__ std::int64_t token(int row) const { return (begin + row) / group; }
  __device__ int head(int row) const { return kv_head * group + static_cast<int>((begin + row) % group); }
};

/// Returns the rows of block `tile`, at most ROWS.
template <int ROWS, bool ALONE>
__device__ TileRows rows_of_tile(const Cached& args, const Span& span, std::int64_t tile, int kv_head) {
  const int group = args.group();
  if constexpr (ALONE) {
    const int tiles = (group + ROWS - 1) / ROWS;
    const int from = static_cast<int>(tile % tiles) * ROWS;
    return {(span.first + tile / tiles) * group + from, min(ROWS, group - from), group, kv_head};
  } else {
    const std::int64_t from = tile * ROWS, all = span.count * group;
    return {span.first * group + from, static_cast<int>(min(static_cast<std::int64_t>(ROWS), all - from)),
            group, kv_head};
  }
}

/// The keys [low, high) of one slot that a block reads for some consecutive tokens of its tile.
struct KeyRange {
  std::int64_t low, high;
};

/// Slots and positions of the tokens of a tile, in shared memory. Slot -1 is outside the cache.
template <int ROWS>
struct TilePlaces {
  int slots[ROWS];
  int positions[ROWS];
};

template <int ROWS>
__device__ void find_places(TilePlaces<ROWS>& places, const Cached& args, const TileRows& tile) {
  const std::int64_t first = tile.token(0);
  const int count = static_cast<int>(tile.token(tile.rows - 1) - first) + 1;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const bool inside = args.inside(first + i);
    places.slots[i] = inside ? args.slots[first + i] : -1;
    places.positions[i] = inside ? args.positions[first + i] : 0;
  }
}

/// Writes the key and value of one KV head of a token to the cache. The calling block can read them after its
/// next barrier. The block needs at least two warps.
template <typename T, bool FP8>
__device__ void append(const Cached& args, std::int64_t token, int kv_head) {
  const T* key = static_cast<const T*>(args.qkv) + token * args.qkv_ld +
                 static_cast<std::int64_t>(args.q_heads + kv_head) * args.head_dim;
  const std::int64_t row = args.row(args.slots[token], args.positions[token]);
  const std::int64_t at = args.element(row, kv_head);
  if constexpr (FP8) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp > 1) return;
    auto* codes = static_cast<std::uint8_t*>(warp == 0 ? args.k_cache : args.v_cache);
    float* scales = warp == 0 ? args.k_scale_inv : args.v_scale_inv;
    encode_head(key + warp * args.stride(), args.head_dim, codes + at,
                scales + row * args.kv_heads + kv_head);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += static_cast<int>(blockDim.x)) {
      static_cast<T*>(args.k_cache)[at + i] = key[i];
      static_cast<T*>(args.v_cache)[at + i] = key[args.stride() + i];
    }
  }
}

/// Returns the address of the output of row (token, head).
template <typename T>
__device__ T* out_row(const Cached& args, std::int64_t token, int head) {
  return static_cast<T*>(args.out) + token * args.out_ld + static_cast<std::int64_t>(head) * args.head_dim;
}

/// Fills output rows outside the cache with args.outside. Called by the block of the first piece.
template <typename T>
__device__ void write_outside(const Cached& args, const TileRows& tile) {
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t token = tile.token(r);
    if (args.inside(token)) continue;
    T* out = out_row<T>(args, token, tile.head(r));
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += static_cast<int>(blockDim.x))
      write_value(out[i], args.outside);
    if (args.lse != nullptr && threadIdx.x == 0) args.lse[tile.head(r) * args.tokens + token] = args.outside;
  }
}

/// Adds the sums of the warps of a block in order. Element d of row r is sums[warp][r][d]. Its weights are
/// base-2 exponentials relative to maxima[warp][r]. Writes the output, or stores the sums of a piece.
template <typename T, int WARPS, int ROWS, int DIM>
__device__ void finish_rows(const Cached& args, const Span& span, const TileRows& tile, int piece,
                            const float* sums, const float (&maxima)[WARPS][ROWS],
                            const float (&totals)[WARPS][ROWS]) {
  for (int i = static_cast<int>(threadIdx.x); i < tile.rows * args.head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / args.head_dim, d = i % args.head_dim;
    const std::int64_t token = tile.token(row);
    if (!args.inside(token)) continue;
    const PieceSum all = put_together<WARPS>(WARPS, [&](int w) {
      return PieceSum{maxima[w][row], totals[w][row], sums[(w * ROWS + row) * DIM + d]};
    });
    const int head = tile.head(row);
    const std::int64_t last = args.positions[token];
    if (span.pieces == 1 || span.of_one_block(args.rule.first_key(last, 0), last)) {
      write_value(out_row<T>(args, token, head)[d], all.value / all.total);
      if (d == 0) args.leave_lse(token, head, all.highest, all.total);
    } else {
      span.leave(all, span.place(token, head, piece, args), args.head_dim, d);
    }
  }
}

inline constexpr int kCombineThreads = 128;

/// Block (token, head): adds the pieces of a cache in order.
template <typename T>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const Cached args, const Span span) {
  wait_for_previous();
  let_next_begin();
  const std::int64_t token = span.first + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  if (!args.inside(token)) return;
  const std::int64_t last = args.positions[token], first = args.rule.first_key(last, 0);
  if (span.of_one_block(first, last)) return;
  const int begin = static_cast<int>(first / span.piece), end = static_cast<int>(last / span.piece) + 1;
  const std::int64_t at = span.place(token, head, 0, args);
  const float* sums = span.sums + 2 * at;
  const float* values = span.values + at * args.head_dim;
  float highest = kLowest, total = 0.0f;
  for (int p = begin; p < end; ++p) highest = fmaxf(highest, sums[2 * p]);
  for (int p = begin; p < end; ++p) total = fmaf(sums[2 * p + 1], exp2f(sums[2 * p] - highest), total);
  if (threadIdx.x == 0) args.leave_lse(token, head, highest, total);
  T* out = out_row<T>(args, token, head);
  for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += kCombineThreads) {
    float x = 0.0f;
    for (int p = begin; p < end; ++p) {
      x = fmaf(values[static_cast<std::int64_t>(p) * args.head_dim + d], exp2f(sums[2 * p] - highest), x);
    }
    write_value(out[d], x / total);
  }
}

}  // namespace octet::ops::cuda
