// Attention of single tokens in bf16, with the bits of the prompt kernel. A block has the rows of one token
// and KV head. It processes the keys from first to last, in the tiles of the prompt kernel and with its
// tensor-core instructions. In the prompt kernel each of the four warps has its own rows. Here the warps
// share 16 rows: each warp computes the scores of 16 keys of a tile, and the value sums of some columns. This
// split does not change the order of any sum.
#pragma once

#include "cuda/attention/cached_bf16.cuh"

namespace octet::ops::cuda {

template <int DIM_, int STAGES_>
struct InOrderCut {
  static constexpr int DIM = DIM_;
  static constexpr int STAGES = STAGES_;  ///< tiles of keys and values in shared memory
  static constexpr int WARPS = 4;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 16;
  static constexpr int KEYS = Bf16Cut<DIM, false>::KEYS;
  static constexpr int ROW = Bf16Cut<DIM, false>::ROW;  ///< as in the prompt kernel
  static constexpr int TILE = KEYS * ROW;
  static constexpr int WEIGHTS_ROW = KEYS + 8;  ///< row pitch of weights in elements
  static constexpr int COLUMN_GROUPS = DIM / 16;
  static constexpr int GROUPS_OF_WARP = (COLUMN_GROUPS + WARPS - 1) / WARPS;
  /// Queries, weights, tiles, and the highest scores of each warp.
  static constexpr int BYTES = 2 * (ROWS * ROW + ROWS * WEIGHTS_ROW + STAGES * 2 * TILE) + 4 * WARPS * ROWS;
  static_assert(KEYS == 16 * WARPS);
};

/// The layout of the shared memory of a block.
template <typename C>
struct InOrderRoom {
  __nv_bfloat16* queries;  ///< [ROWS, ROW]
  __nv_bfloat16* weights;  ///< [ROWS, WEIGHTS_ROW] of the keys of a tile
  __nv_bfloat16* stages;   ///< [STAGES, 2, KEYS, ROW]: keys and values
  float* maxima;           ///< [WARPS, ROWS]

  __device__ explicit InOrderRoom(unsigned char* shared) {
    queries = reinterpret_cast<__nv_bfloat16*>(shared);
    weights = queries + C::ROWS * C::ROW;
    stages = weights + C::ROWS * C::WEIGHTS_ROW;
    maxima = reinterpret_cast<float*>(stages + C::STAGES * 2 * C::TILE);
  }
};

/// State of a lane for rows lane / 4 and lane / 4 + 8, in this order. All warps have the same maxima and
/// totals.
template <typename C>
struct InOrderSums {
  float values[C::GROUPS_OF_WARP * 2][4] = {};  ///< in the layout of multiply_add(), columns of this warp
  float maximum[2] = {kLowest, kLowest};        ///< highest scores, base 2
  float total[2] = {0.0f, 0.0f};                ///< sums of weights over the columns of this lane
};

/// Computes the base-2 scores of the 16 keys of this warp in a tile that starts with key `begin`. Keys that
/// the row does not see get kLowest.
template <typename C>
__device__ void make_scores(float (&scores)[2][4], const __nv_bfloat16* queries, const __nv_bfloat16* keys,
                            const ScoreRule& rule, int begin, const Sight& sight) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const __nv_bfloat16* query = queries + lane % 16 * C::ROW + lane / 16 * 8;
  const __nv_bfloat16* key = keys + (16 * warp + lane / 16 * 8 + lane % 8) * C::ROW + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < C::DIM; k += 16) {
    std::uint32_t a[4], b[4];
    load_matrices(a, query + k);
    load_matrices(b, key + k);
    multiply_add(scores[0], a, b[0], b[1]);
    multiply_add(scores[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = begin + 16 * warp + n * 8 + lane % 4 * 2 + e % 2;
      scores[n][e] = seen_score(scores[n][e], rule, j, sight.first[e / 2], sight.last[e / 2]);
    }
  }
}

/// Writes the weights of this warp for the two rows of a lane. `highest` holds the highest scores of these
/// rows.
template <typename C>
__device__ void leave_weights(__nv_bfloat16* weights, const float (&scores)[2][4],
                              const float (&highest)[2]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __nv_bfloat16 weight[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) weight[e] = weight_of(scores[n][2 * i + e], highest[i]);
      __nv_bfloat16* const to =
          weights + (lane / 4 + 8 * i) * C::WEIGHTS_ROW + 16 * warp + 8 * n + lane % 4 * 2;
      *reinterpret_cast<std::uint32_t*>(to) = packed(weight[0], weight[1]);
    }
  }
}

__device__ inline float low_of(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_of(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

/// Adds the weights of a tile to the totals, and its weighted values to the sums of the columns of this warp.
template <typename C>
__device__ void add_values(InOrderSums<C>& sums, const __nv_bfloat16* weights, const __nv_bfloat16* values) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const __nv_bfloat16* weight = weights + lane % 16 * C::WEIGHTS_ROW + lane / 16 * 8;
  const __nv_bfloat16* value = values + (lane / 8 % 2 * 8 + lane % 8) * C::ROW + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < C::KEYS; n += 16) {
    std::uint32_t a[4];
    load_matrices(a, weight + n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sums.total[i] += low_of(a[2 * half + i]);
        sums.total[i] += high_of(a[2 * half + i]);
      }
    }
#pragma unroll
    for (int g = 0; g < C::GROUPS_OF_WARP; ++g) {
      const int group = warp + g * C::WARPS;
      if (group >= C::COLUMN_GROUPS) continue;
      std::uint32_t b[4];
      load_transposed(b, value + n * C::ROW + group * 16);
      multiply_add(sums.values[2 * g], a, b[0], b[1]);
      multiply_add(sums.values[2 * g + 1], a, b[2], b[3]);
    }
  }
}

/// Adds a tile that starts with key `begin`. Called by all threads of the block. A barrier is required before
/// the tile is changed and before the next call.
template <typename C>
__device__ void add_tile_in_order(InOrderSums<C>& sums, const InOrderRoom<C>& room,
                                  const __nv_bfloat16* stage, const ScoreRule& rule, int begin,
                                  const Sight& sight) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float scores[2][4] = {};
  make_scores<C>(scores, room.queries, stage, rule, begin, sight);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float most =
        fmaxf(fmaxf(scores[0][2 * i], scores[0][2 * i + 1]), fmaxf(scores[1][2 * i], scores[1][2 * i + 1]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
    if (lane % 4 == 0) room.maxima[warp * C::ROWS + lane / 4 + 8 * i] = most;
  }
  __syncthreads();
  float highest[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    highest[i] = sums.maximum[i];
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w)
      highest[i] = fmaxf(highest[i], room.maxima[w * C::ROWS + lane / 4 + 8 * i]);
  }
  leave_weights<C>(room.weights, scores, highest);
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factor[i] = exp2f(sums.maximum[i] - highest[i]);
    sums.maximum[i] = highest[i];
    sums.total[i] = __fmul_rn(sums.total[i], factor[i]);
  }
#pragma unroll
  for (int n = 0; n < C::GROUPS_OF_WARP * 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums.values[n][e] *= factor[e / 2];
  }
  __syncthreads();
  add_values<C>(sums, room.weights, stage + C::TILE);
}

/// Copies the queries of a token to shared memory, with zeros outside of the tile. They are readable after
/// the next barrier of the block.
template <typename C>
__device__ void copy_queries(__nv_bfloat16* to, const Cached& args, const TileRows& tile) {
  constexpr int PER = C::DIM / 8;
  const auto* qkv = static_cast<const __nv_bfloat16*>(args.qkv) + tile.token(0) * args.qkv_ld;
  for (int i = static_cast<int>(threadIdx.x); i < C::ROWS * PER; i += C::THREADS) {
    const int row = i / PER, column = i % PER * 8;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (row < tile.rows && column < args.head_dim) {
      eight = *reinterpret_cast<const uint4*>(
          qkv + static_cast<std::int64_t>(tile.head(row)) * args.head_dim + column);
    }
    *reinterpret_cast<uint4*>(to + row * C::ROW + column) = eight;
  }
}

/// Writes the output rows of a token that is inside the cache.
template <typename C>
__device__ void write_in_order(const InOrderSums<C>& sums, const Cached& args, const TileRows& tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float total = over_row(sums.total[i]);
    const int row = lane / 4 + 8 * i;
    if (row >= tile.rows) continue;
    const std::int64_t token = tile.token(0);
    __nv_bfloat16* out = out_row<__nv_bfloat16>(args, token, tile.head(row));
    if (warp == 0 && lane % 4 == 0) args.leave_lse(token, tile.head(row), sums.maximum[i], total);
#pragma unroll
    for (int n = 0; n < C::GROUPS_OF_WARP * 2; ++n) {
      const int column = (warp + n / 2 * C::WARPS) * 16 + n % 2 * 8 + lane % 4 * 2;
      if (column >= args.head_dim) continue;
      write_value(out[column], sums.values[n][2 * i] / total);
      write_value(out[column + 1], sums.values[n][2 * i + 1] / total);
    }
  }
}

/// Block (token and its rows, KV head). The block that reads the token's key also writes it to the cache.
/// Earlier passes have written the position of the token and the earlier cache contents. So they are read
/// before the previous kernel has ended.
template <typename C>
__global__ void __launch_bounds__(C::THREADS)
    in_order_bf16_kernel(const __grid_constant__ Cached args, const __grid_constant__ Span span) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TileRows tile = rows_of_tile<C::ROWS, true>(args, span, blockIdx.x, static_cast<int>(blockIdx.y));
  const std::int64_t token = tile.token(0);
  if (!args.inside(token)) {
    wait_for_previous();
    write_outside<__nv_bfloat16>(args, tile);
    return;
  }
  const InOrderRoom<C> room(dynamic_shared());
  const std::int64_t slot = args.slots[token], last = args.positions[token];
  const KeyRange range{args.rule.first_key(last, 0), last + 1};
  const std::int64_t begin = range.low / C::KEYS * C::KEYS;
  const int tiles = static_cast<int>((range.high - begin + C::KEYS - 1) / C::KEYS);
  const auto stage = [&](int t) { return room.stages + t % C::STAGES * 2 * C::TILE; };
  const auto row_of_tile = [&](int t) { return first_row<C>(args, slot, begin + t * C::KEYS, range.high); };
  const auto ask = [&](int t, std::int64_t row) {
    load_tile<C>(stage(t), args, slot, tile.kv_head, begin + t * C::KEYS, row, range);
  };
  // The last tile holds the key of the token.
#pragma unroll
  for (int t = 0; t < C::STAGES - 1; ++t) {
    if (t < tiles - 1) ask(t, row_of_tile(t));
    end_copies();
  }
  std::int64_t next_row = row_of_tile(C::STAGES - 1);
  wait_for_previous();
  let_next_begin();
  copy_queries<C>(room.queries, args, tile);
  append<__nv_bfloat16, false>(args, token, tile.kv_head);
  __syncthreads();
  if (tiles < C::STAGES) {
    ask(tiles - 1, row_of_tile(tiles - 1));
    end_copies();
  }
  Sight sight;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool here = lane / 4 + 8 * i < tile.rows;
    sight.last[i] = here ? static_cast<int>(last) : -1;
    sight.first[i] = here ? static_cast<int>(range.low) : 0;
  }
  InOrderSums<C> sums;
  for (int t = 0; t < tiles; ++t) {
    t + 1 < tiles ? wait_for_copies<C::STAGES - 2>() : wait_for_copies<0>();
    __syncthreads();  // tile t has arrived, and all threads have read tile t - 1
    if (t + C::STAGES - 1 < tiles) {
      ask(t + C::STAGES - 1, next_row);
      next_row = row_of_tile(t + C::STAGES);
    }
    end_copies();
    add_tile_in_order<C>(sums, room, stage(t), args.rule, static_cast<int>(begin) + t * C::KEYS, sight);
  }
  write_in_order<C>(sums, args, tile);
}

}  // namespace octet::ops::cuda
