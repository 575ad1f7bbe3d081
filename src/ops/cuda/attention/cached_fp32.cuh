// Attention for decoding in fp32. A warp reads one key at a time, 16 bytes per lane, for up to eight rows.
#pragma once

#include "cuda/attention/cached.cuh"

namespace octet::ops::cuda {

template <int DIM_, bool FP8_>
struct Fp32Cut {
  static constexpr int DIM = DIM_;
  static constexpr bool FP8 = FP8_;  ///< the cache is in E4M3
  static constexpr int WARPS = 4;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 8;
  static constexpr int QUADS = DIM / 128;  ///< groups of four columns of a lane
};

/// State of a lane for all rows: columns 128 q + 4 lane and the next three.
template <typename C>
struct LaneSums {
  float4 queries[C::ROWS][C::QUADS];
  float4 values[C::ROWS][C::QUADS];
  float maximum[C::ROWS], total[C::ROWS];
};

/// Returns four columns of a row for a lane, with zeros outside the head.
template <typename C>
__device__ float4 quad_of(const float* row, int quad, int head_dim) {
  const int column = 128 * quad + static_cast<int>(threadIdx.x) % 32 * 4;
  if (column >= head_dim) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return *reinterpret_cast<const float4*>(row + column);
}

/// Like quad_of(), for row `row` of keys, or values, of a cache.
template <typename C>
__device__ float4 cached_quad(const void* cache, const float* scale_inv, std::int64_t row_begin,
                              std::int64_t scale_at, int quad, int head_dim) {
  if constexpr (C::FP8) {
    const int column = 128 * quad + static_cast<int>(threadIdx.x) % 32 * 4;
    if (column >= head_dim) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto codes =
        *reinterpret_cast<const ushort2*>(static_cast<const std::uint8_t*>(cache) + row_begin + column);
    const float scale = scale_inv[scale_at];
    const float2 low = decoded_pair(codes.x, scale), high = decoded_pair(codes.y, scale);
    return make_float4(low.x, low.y, high.x, high.y);
  } else {
    return quad_of<C>(static_cast<const float*>(cache) + row_begin, quad, head_dim);
  }
}

template <typename C>
__device__ void begin_rows(LaneSums<C>& sums, const Cached& args, const TileRows& tile) {
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r) {
    sums.maximum[r] = kLowest;
    sums.total[r] = 0.0f;
#pragma unroll
    for (int q = 0; q < C::QUADS; ++q) {
      sums.queries[r][q] = sums.values[r][q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (r >= tile.rows) continue;
      const float* row = static_cast<const float*>(args.qkv) + tile.token(r) * args.qkv_ld +
                         static_cast<std::int64_t>(tile.head(r)) * args.head_dim;
      sums.queries[r][q] = quad_of<C>(row, q, args.head_dim);
    }
  }
}

/// Adds keys of one slot to the rows that see them: row r sees [first[r], last[r]]. Each warp adds every
/// WARPS-th key.
template <typename C>
__device__ void add_keys(LaneSums<C>& sums, const Cached& args, std::int64_t slot, int kv_head,
                         const KeyRange& range, const int (&first)[C::ROWS], const int (&last)[C::ROWS]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  RowsInTurn rows(args, slot);
  // The warp of a key does not depend on the start of the range.
  for (std::int64_t j = range.low / C::WARPS * C::WARPS + warp; j < range.high; j += C::WARPS) {
    if (j < range.low) continue;
    const std::int64_t row = rows(j), at = args.element(row, kv_head);
    const std::int64_t scale = row * args.kv_heads + kv_head;
    float4 key[C::QUADS], value[C::QUADS];
#pragma unroll
    for (int q = 0; q < C::QUADS; ++q) {
      key[q] = cached_quad<C>(args.k_cache, args.k_scale_inv, at, scale, q, args.head_dim);
      value[q] = cached_quad<C>(args.v_cache, args.v_scale_inv, at, scale, q, args.head_dim);
    }
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r) {
      if (j < first[r] || j > last[r]) continue;  // uniform over lanes
      float dot = 0.0f;
#pragma unroll
      for (int q = 0; q < C::QUADS; ++q) {
        const float4 x = sums.queries[r][q];
        dot = fmaf(x.x, key[q].x, dot);
        dot = fmaf(x.y, key[q].y, dot);
        dot = fmaf(x.z, key[q].z, dot);
        dot = fmaf(x.w, key[q].w, dot);
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, step);
      float slope;
      const float score = args.rule.score(dot, slope) * kLog2E;
      const float highest = fmaxf(sums.maximum[r], score);
      const float factor = exp2f(sums.maximum[r] - highest), weight = exp2f(score - highest);
      sums.maximum[r] = highest;
      sums.total[r] = fmaf(sums.total[r], factor, weight);
#pragma unroll
      for (int q = 0; q < C::QUADS; ++q) {
        float4& x = sums.values[r][q];
        x.x = fmaf(weight, value[q].x, x.x * factor);
        x.y = fmaf(weight, value[q].y, x.y * factor);
        x.z = fmaf(weight, value[q].z, x.z * factor);
        x.w = fmaf(weight, value[q].w, x.w * factor);
      }
    }
  }
}

/// Adds the sums of the warps.
template <typename C>
__device__ void finish(const LaneSums<C>& sums, const Cached& args, const Span& span, const TileRows& tile,
                       int piece) {
  __shared__ float maxima[C::WARPS][C::ROWS], totals[C::WARPS][C::ROWS];
  __shared__ float4 all[C::WARPS][C::ROWS][C::DIM / 4];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r) {
    if (lane == 0) {
      maxima[warp][r] = sums.maximum[r];
      totals[warp][r] = sums.total[r];
    }
#pragma unroll
    for (int q = 0; q < C::QUADS; ++q) all[warp][r][32 * q + lane] = sums.values[r][q];
  }
  __syncthreads();
  finish_rows<float, C::WARPS, C::ROWS, C::DIM>(args, span, tile, piece, reinterpret_cast<const float*>(all),
                                                maxima, totals);
}

/// Like decode_bf16_kernel.
template <typename C>
__global__ void __launch_bounds__(C::THREADS) decode_fp32_kernel(const Cached args, const Span span) {
  wait_for_previous();
  let_next_begin();
  const int piece = static_cast<int>(blockIdx.z);
  const TileRows tile = rows_of_tile<C::ROWS, true>(args, span, blockIdx.x, static_cast<int>(blockIdx.y));
  const std::int64_t token = tile.token(0);
  if (!args.inside(token)) {
    if (piece == 0) write_outside<float>(args, tile);
    return;
  }
  const std::int64_t last = args.positions[token], first = args.rule.first_key(last, 0);
  const std::int64_t begin = piece * span.piece, end = begin + span.piece;
  const KeyRange range{first > begin ? first : begin, last + 1 < end ? last + 1 : end};
  if (range.low >= range.high) return;
  if (range.high == last + 1) {
    append<float, C::FP8>(args, token, tile.kv_head);
    __syncthreads();
  }
  LaneSums<C> sums;
  begin_rows<C>(sums, args, tile);
  int firsts[C::ROWS], lasts[C::ROWS];
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r) {
    firsts[r] = static_cast<int>(first);
    lasts[r] = r < tile.rows ? static_cast<int>(last) : -1;
  }
  add_keys<C>(sums, args, args.slots[token], tile.kv_head, range, firsts, lasts);
  finish<C>(sums, args, span, tile, piece);
}

/// Like prompt_bf16_kernel.
template <typename C>
__global__ void __launch_bounds__(C::THREADS) prompt_fp32_kernel(const Cached args, const Span span) {
  __shared__ TilePlaces<C::ROWS> places;
  const TileRows tile = rows_of_tile<C::ROWS, false>(args, span, blockIdx.x, static_cast<int>(blockIdx.y));
  find_places(places, args, tile);
  __syncthreads();
  const std::int64_t first_token = tile.token(0);
  const int tokens = static_cast<int>(tile.token(tile.rows - 1) - first_token) + 1;
  LaneSums<C> sums;
  begin_rows<C>(sums, args, tile);
  for (int begin = 0, end = 0; begin < tokens; begin = end) {
    const int slot = places.slots[begin];
    KeyRange range{args.capacity, 0};
    for (end = begin; end < tokens && places.slots[end] == slot; ++end) {
      const std::int64_t last = places.positions[end], first = args.rule.first_key(last, 0);
      range.low = first < range.low ? first : range.low;
      range.high = last + 1 > range.high ? last + 1 : range.high;
    }
    if (slot < 0) continue;
    int first[C::ROWS], last[C::ROWS];
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r) {
      const int at = r < tile.rows ? static_cast<int>(tile.token(r) - first_token) : -1;
      const bool here = at >= begin && at < end;
      last[r] = here ? places.positions[at] : -1;
      first[r] = here ? static_cast<int>(args.rule.first_key(last[r], 0)) : 0;
    }
    add_keys<C>(sums, args, slot, tile.kv_head, range, first, last);
  }
  finish<C>(sums, args, span, tile, 0);
  write_outside<float>(args, tile);
}

}  // namespace octet::ops::cuda
