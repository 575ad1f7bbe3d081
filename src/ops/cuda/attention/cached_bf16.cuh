// Attention of prompts in bf16 on tensor cores. Tiles of 64 keys and values are copied to shared memory
// during computation. Each of four warps multiplies its own 16 rows with them. For an E4M3 cache, the codes
// are copied to shared memory and decoded to bf16 (exact) just before use.
#pragma once

#include "cuda/attention/cached.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

template <int DIM_, bool FP8_>
struct Bf16Cut {
  static constexpr int DIM = DIM_;
  static constexpr bool FP8 = FP8_;  ///< the cache is in E4M3
  static constexpr int WARPS = 4;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 64;
  static constexpr int KEYS = 64;             ///< keys of a tile
  static constexpr int ROW = DIM + 8;         ///< row pitch in elements: eight rows use different banks
  static constexpr int TILE = KEYS * ROW;     ///< elements of a tile of keys, or of values
  static constexpr int STAGES = FP8 ? 1 : 2;  ///< buffers of keys and values in bf16
  static constexpr int CODES = KEYS * DIM;    ///< bytes of a tile of keys, or of values, in E4M3
  static constexpr int RAW = 2 * (CODES + 4 * KEYS);  ///< bytes of both with their scales
  /// Queries, bf16 buffers of keys and values, and two buffers of E4M3 codes.
  static constexpr int BYTES = 2 * (ROWS * ROW + STAGES * 2 * TILE) + (FP8 ? 2 * RAW : 0);
};

/// State of a lane for rows lane / 4 and lane / 4 + 8 of the 16 rows of its warp, in this order.
template <typename C>
struct WarpSums {
  float values[C::DIM / 8][4];  ///< columns 8 n + 2 (lane % 4) and the next; first row, then second row
  float maximum[2];             ///< highest scores, base 2
  float total[2];               ///< sums of weights over the columns of this lane

  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < C::DIM / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[n][e] = 0.0f;
    }
    maximum[0] = maximum[1] = kLowest;
    total[0] = total[1] = 0.0f;
  }
};

/// The keys that the two rows of a lane see; none if first > last. Positions have 32 bits.
struct Sight {
  int first[2], last[2];
};

/// Copies the queries of a tile to shared memory, with zeros outside of the tile.
template <typename C>
__device__ void load_queries(__nv_bfloat16* to, const Cached& args, const TileRows& tile) {
  constexpr int PER = C::DIM / 8;
  for (int i = static_cast<int>(threadIdx.x); i < C::ROWS * PER; i += C::THREADS) {
    const int row = i / PER, column = i % PER * 8;
    const bool inside = row < tile.rows && column < args.head_dim;
    const auto* qkv = static_cast<const __nv_bfloat16*>(args.qkv);
    const __nv_bfloat16* from = inside
                                    ? qkv + tile.token(row) * args.qkv_ld +
                                          static_cast<std::int64_t>(tile.head(row)) * args.head_dim + column
                                    : qkv;
    copy_16(to + row * C::ROW + column, from, inside);
  }
}

/// Returns the cache row of the first key of a tile if the keys of the tile are in consecutive rows;
/// otherwise 0. Also 0 if `begin` is not below `high`.
template <typename C>
__device__ std::int64_t first_row(const Cached& args, std::int64_t slot, std::int64_t begin,
                                  std::int64_t high) {
  return begin < high && args.together(C::KEYS) ? args.row(slot, begin) : 0;
}

/// Returns the cache row of key `i` of a tile. `first` is the result of first_row().
template <typename C>
__device__ std::int64_t row_of_key(const Cached& args, std::int64_t slot, std::int64_t begin,
                                   std::int64_t first, int i) {
  return args.together(C::KEYS) ? first + i : args.row(slot, begin + i);
}

/// Copies KEYS keys in consecutive rows from `first` on, and their values, to a buffer. Each thread copies
/// the same columns of several rows.
template <typename C>
__device__ void load_whole_tile(__nv_bfloat16* stage, const Cached& args, int kv_head, std::int64_t first) {
  constexpr int PER = C::DIM / 8, STEP = C::THREADS / PER;
  static_assert(C::THREADS % PER == 0 && C::KEYS % STEP == 0);
  const int row = static_cast<int>(threadIdx.x) / PER, column = static_cast<int>(threadIdx.x) % PER * 8;
  const std::int64_t at = args.element(first + row, kv_head) + column, step = STEP * args.row_stride;
  const auto* key = static_cast<const __nv_bfloat16*>(args.k_cache) + at;
  const auto* value = static_cast<const __nv_bfloat16*>(args.v_cache) + at;
  __nv_bfloat16* const to = stage + row * C::ROW + column;
#pragma unroll
  for (int i = 0; i < C::KEYS / STEP; ++i) {
    copy_16(to + i * STEP * C::ROW, key);
    copy_16(to + i * STEP * C::ROW + C::TILE, value);
    key += step;
    value += step;
  }
}

/// Copies keys [begin, begin + KEYS) and their values to a buffer, with zeros outside `range`.
template <typename C>
__device__ void load_tile(__nv_bfloat16* stage, const Cached& args, std::int64_t slot, int kv_head,
                          std::int64_t begin, std::int64_t first, const KeyRange& range) {
  constexpr int PER = C::DIM / 8;
  if constexpr (C::THREADS % PER == 0) {
    if (args.head_dim == C::DIM && args.together(C::KEYS) && begin >= range.low &&
        begin + C::KEYS <= range.high) {
      return load_whole_tile<C>(stage, args, kv_head, first);
    }
  }
  const auto* keys = static_cast<const __nv_bfloat16*>(args.k_cache);
  const auto* values = static_cast<const __nv_bfloat16*>(args.v_cache);
  for (int i = static_cast<int>(threadIdx.x); i < C::KEYS * PER; i += C::THREADS) {
    const int row = i / PER, column = i % PER * 8;
    const std::int64_t key = begin + row;
    const bool inside = key >= range.low && key < range.high && column < args.head_dim;
    const std::int64_t at =
        inside ? args.element(row_of_key<C>(args, slot, begin, first, row), kv_head) + column : 0;
    copy_16(stage + row * C::ROW + column, keys + at, inside);
    copy_16(stage + C::TILE + row * C::ROW + column, values + at, inside);
  }
}

/// Copies the codes of keys [begin, begin + KEYS), of their values, and both scales to shared memory, with
/// zeros outside `range`.
template <typename C>
__device__ void load_codes(std::uint8_t* raw, const Cached& args, std::int64_t slot, int kv_head,
                           std::int64_t begin, std::int64_t first, const KeyRange& range) {
  constexpr int PER = C::DIM / 16;
  const auto* keys = static_cast<const std::uint8_t*>(args.k_cache);
  const auto* values = static_cast<const std::uint8_t*>(args.v_cache);
  for (int i = static_cast<int>(threadIdx.x); i < C::KEYS * PER; i += C::THREADS) {
    const int row = i / PER, column = i % PER * 16;
    const std::int64_t key = begin + row;
    const bool inside = key >= range.low && key < range.high && column < args.head_dim;
    const std::int64_t at =
        inside ? args.element(row_of_key<C>(args, slot, begin, first, row), kv_head) + column : 0;
    copy_16(raw + row * C::DIM + column, keys + at, inside);
    copy_16(raw + C::CODES + row * C::DIM + column, values + at, inside);
  }
  auto* scales = reinterpret_cast<float*>(raw + 2 * C::CODES);  // [2, KEYS]
  for (int i = static_cast<int>(threadIdx.x); i < 2 * C::KEYS; i += C::THREADS) {
    const int row = i % C::KEYS;
    const std::int64_t key = begin + row;
    const bool inside = key >= range.low && key < range.high;
    const float* from = i < C::KEYS ? args.k_scale_inv : args.v_scale_inv;
    const std::int64_t at =
        inside ? row_of_key<C>(args, slot, begin, first, row) * args.kv_heads + kv_head : 0;
    copy_4(scales + i, from + at, inside);
  }
}

/// Decodes the codes of keys and values to a bf16 buffer.
template <typename C>
__device__ void decode_codes(__nv_bfloat16* stage, const std::uint8_t* raw) {
  constexpr int PER = C::DIM / 8;
  const auto* scales = reinterpret_cast<const float*>(raw + 2 * C::CODES);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * C::KEYS * PER; i += C::THREADS) {
    const int row = i / PER % C::KEYS, column = i % PER * 8, part = i / (PER * C::KEYS);
    const uint2 codes = *reinterpret_cast<const uint2*>(raw + part * C::CODES + row * C::DIM + column);
    const float scale = scales[part * C::KEYS + row];
    const auto two = [&](std::uint32_t word, int high) {
      const float2 x = decoded_pair(static_cast<std::uint16_t>(word >> (16 * high)), scale);
      return packed(__float2bfloat16_rn(x.x), __float2bfloat16_rn(x.y));
    };
    *reinterpret_cast<uint4*>(stage + part * C::TILE + row * C::ROW + column) =
        make_uint4(two(codes.x, 0), two(codes.x, 1), two(codes.y, 0), two(codes.y, 1));
  }
}

/// Returns the base-2 score of key `j` from a dot product, or kLowest if the row does not see the key. Uses
/// __fmul_rn so that it is not fused with later operations: in_order_bf16_kernel needs the same bits.
__device__ inline float seen_score(float dot, const ScoreRule& rule, int j, int first, int last) {
  float slope;
  return j >= first && j <= last ? __fmul_rn(rule.score(dot, slope), kLog2E) : kLowest;
}

/// Returns the weight of a score in a row with maximum `highest`. Unseen keys have weight 0, even if the row
/// has not seen any key yet.
__device__ inline __nv_bfloat16 weight_of(float score, float highest) {
  return __float2bfloat16_rn(score == kLowest ? 0.0f : exp2f(score - highest));
}

/// Adds the keys of a buffer, starting with key `begin`, to the sums of a warp.
template <typename C>
__device__ void add_tile(WarpSums<C>& sums, const __nv_bfloat16* queries, const __nv_bfloat16* stage,
                         const ScoreRule& rule, int begin, const Sight& sight) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = 16 * warp;
  constexpr int COLUMNS = C::KEYS / 8;
  float scores[COLUMNS][4];
#pragma unroll
  for (int n = 0; n < COLUMNS; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = 0.0f;
  }
  // Lanes address rows of queries 0 … 15 twice, the second time with an offset of eight columns.
  const __nv_bfloat16* query = queries + (first_row + lane % 16) * C::ROW + lane / 16 * 8;
  // Keys 0 … 7 with both halves of the columns, then keys 8 … 15.
  const __nv_bfloat16* key = stage + (lane / 16 * 8 + lane % 8) * C::ROW + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < C::DIM; k += 16) {
    std::uint32_t a[4];
    load_matrices(a, query + k);
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, key + n * 8 * C::ROW + k);
      multiply_add(scores[n], a, b[0], b[1]);
      multiply_add(scores[n + 1], a, b[2], b[3]);
    }
  }
  float highest[2] = {sums.maximum[0], sums.maximum[1]};
#pragma unroll
  for (int n = 0; n < COLUMNS; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = begin + n * 8 + lane % 4 * 2 + e % 2;
      scores[n][e] = seen_score(scores[n][e], rule, j, sight.first[e / 2], sight.last[e / 2]);
      highest[e / 2] = fmaxf(highest[e / 2], scores[n][e]);
    }
  }
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    highest[i] = fmaxf(highest[i], __shfl_xor_sync(0xFFFFFFFFu, highest[i], 1));
    highest[i] = fmaxf(highest[i], __shfl_xor_sync(0xFFFFFFFFu, highest[i], 2));
    factor[i] = exp2f(sums.maximum[i] - highest[i]);
    sums.maximum[i] = highest[i];
    sums.total[i] = __fmul_rn(sums.total[i], factor[i]);
  }
#pragma unroll
  for (int n = 0; n < C::DIM / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.values[n][e] *= factor[e / 2];
  }
  // Keys 0 … 15 of eight columns, then keys 0 … 15 of the next eight columns.
  const __nv_bfloat16* value = stage + C::TILE + (lane / 8 % 2 * 8 + lane % 8) * C::ROW + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < COLUMNS; n += 2) {
    std::uint32_t a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        __nv_bfloat16 weight[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          weight[e] = weight_of(scores[n + half][2 * i + e], highest[i]);
          sums.total[i] += __bfloat162float(weight[e]);
        }
        a[2 * half + i] = packed(weight[0], weight[1]);
      }
    }
#pragma unroll
    for (int d = 0; d < C::DIM; d += 16) {
      std::uint32_t b[4];
      load_transposed(b, value + n * 8 * C::ROW + d);
      multiply_add(sums.values[d / 8], a, b[0], b[1]);
      multiply_add(sums.values[d / 8 + 1], a, b[2], b[3]);
    }
  }
}

/// Adds the keys of one slot of an E4M3 cache to the sums of all warps.
template <typename C>
__device__ void add_coded_keys(WarpSums<C>& sums, const __nv_bfloat16* queries, __nv_bfloat16* stages,
                               const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range,
                               const Sight& sight) {
  // Tiles begin at multiples of their length, so the grouping of keys into sums does not depend on other
  // rows.
  const std::int64_t begin = range.low / C::KEYS * C::KEYS;
  const std::int64_t tiles = (range.high - begin + C::KEYS - 1) / C::KEYS;
  auto* raws = reinterpret_cast<std::uint8_t*>(stages + 2 * C::TILE);
  load_codes<C>(raws, args, slot, kv_head, begin, first_row<C>(args, slot, begin, range.high), range);
  end_copies();
  // The page table is read one tile ahead.
  std::int64_t next_row = first_row<C>(args, slot, begin + C::KEYS, range.high);
  for (std::int64_t t = 0; t < tiles; ++t) {
    if (t + 1 < tiles) {
      const std::int64_t next = begin + (t + 1) * C::KEYS;
      load_codes<C>(raws + (t + 1) % 2 * C::RAW, args, slot, kv_head, next, next_row, range);
      next_row = first_row<C>(args, slot, next + C::KEYS, range.high);
    }
    end_copies();
    wait_for_copies<1>();
    __syncthreads();
    decode_codes<C>(stages, raws + t % 2 * C::RAW);
    __syncthreads();
    add_tile<C>(sums, queries, stages, args.rule, static_cast<int>(begin + t * C::KEYS), sight);
  }
  __syncthreads();
}

/// Adds the keys of one slot of a bf16 cache to the sums of all warps.
template <typename C>
__device__ void add_keys(WarpSums<C>& sums, const __nv_bfloat16* queries, __nv_bfloat16* stages,
                         const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range,
                         const Sight& sight) {
  // Tiles begin at multiples of their length, so the grouping of keys into sums does not depend on other
  // rows.
  const std::int64_t begin = range.low / C::KEYS * C::KEYS;
  const std::int64_t tiles = (range.high - begin + C::KEYS - 1) / C::KEYS;
  load_tile<C>(stages, args, slot, kv_head, begin, first_row<C>(args, slot, begin, range.high), range);
  end_copies();
  // The page table is read one tile ahead.
  std::int64_t next_row = first_row<C>(args, slot, begin + C::KEYS, range.high);
  for (std::int64_t t = 0; t < tiles; ++t) {
    if (t + 1 < tiles) {
      const std::int64_t next = begin + (t + 1) * C::KEYS;
      load_tile<C>(stages + (t + 1) % 2 * 2 * C::TILE, args, slot, kv_head, next, next_row, range);
      next_row = first_row<C>(args, slot, next + C::KEYS, range.high);
    }
    end_copies();
    wait_for_copies<1>();
    __syncthreads();
    add_tile<C>(sums, queries, stages + t % 2 * 2 * C::TILE, args.rule, static_cast<int>(begin + t * C::KEYS),
                sight);
    __syncthreads();
  }
}

/// Adds the keys of one slot of a cache in either format.
template <typename C>
__device__ void add_any_keys(WarpSums<C>& sums, const __nv_bfloat16* queries, __nv_bfloat16* stages,
                             const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range,
                             const Sight& sight) {
  if constexpr (C::FP8) {
    add_coded_keys<C>(sums, queries, stages, args, slot, kv_head, range, sight);
  } else {
    add_keys<C>(sums, queries, stages, args, slot, kv_head, range, sight);
  }
}

/// Adds the totals of the four lanes of a row.
__device__ inline float over_row(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// Block (tile of rows, KV head): attention of the tokens of prompts, sequence after sequence. The sums of a
/// row do not depend on other rows: tiles of keys begin at multiples of their length, and keys that the row
/// does not see add exact zeros. in_order_bf16_kernel computes the same sums.
template <typename C>
__global__ void __launch_bounds__(C::THREADS) prompt_bf16_kernel(const Cached args, const Span span) {
  __shared__ TilePlaces<C::ROWS> places;
  const TileRows tile = rows_of_tile<C::ROWS, false>(args, span, blockIdx.x, static_cast<int>(blockIdx.y));
  auto* queries = reinterpret_cast<__nv_bfloat16*>(dynamic_shared());
  __nv_bfloat16* stages = queries + C::ROWS * C::ROW;
  load_queries<C>(queries, args, tile);
  find_places(places, args, tile);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first_token = tile.token(0);
  const int tokens = static_cast<int>(tile.token(tile.rows - 1) - first_token) + 1;
  int token_of[2];  // tokens of the lane's rows, counted in the tile; -1: no such row
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * i;
    token_of[i] = row < tile.rows ? static_cast<int>(tile.token(row) - first_token) : -1;
  }
  WarpSums<C> sums;
  sums.clear();
  for (int begin = 0, end = 0; begin < tokens; begin = end) {
    const int slot = places.slots[begin];
    KeyRange range{args.capacity, 0};
    for (end = begin; end < tokens && places.slots[end] == slot; ++end) {
      const std::int64_t last = places.positions[end], first = args.rule.first_key(last, 0);
      range.low = first < range.low ? first : range.low;
      range.high = last + 1 > range.high ? last + 1 : range.high;
    }
    if (slot < 0) continue;
    Sight sight;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool here = token_of[i] >= begin && token_of[i] < end;
      sight.last[i] = here ? places.positions[token_of[i]] : -1;
      sight.first[i] = here ? static_cast<int>(args.rule.first_key(sight.last[i], 0)) : 0;
    }
    add_any_keys<C>(sums, queries, stages, args, slot, tile.kv_head, range, sight);
  }
  wait_for_copies<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = over_row(sums.total[i]);
    if (token_of[i] < 0 || places.slots[token_of[i]] < 0) continue;
    const int row = 16 * warp + lane / 4 + 8 * i;
    __nv_bfloat16* out = out_row<__nv_bfloat16>(args, tile.token(row), tile.head(row));
    if (lane % 4 == 0) args.leave_lse(tile.token(row), tile.head(row), sums.maximum[i], total);
#pragma unroll
    for (int n = 0; n < C::DIM / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column >= args.head_dim) continue;
      write_value(out[column], sums.values[n][2 * i] / total);
      write_value(out[column + 1], sums.values[n][2 * i + 1] / total);
    }
  }
  write_outside<__nv_bfloat16>(args, tile);
}

}  // namespace octet::ops::cuda
