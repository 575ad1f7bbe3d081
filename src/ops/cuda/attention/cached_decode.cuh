// Attention of single tokens in bf16, bound by reads of the cache. A block has the rows of one token and KV
// head. Its warps process groups of keys in turn. Then their sums over a piece of the cache are added in warp
// order.
#pragma once

#include <algorithm>

#include "cuda/attention/decode_sums.cuh"

namespace octet::ops::cuda {

/// The sums of the warps of a block. They reuse the memory of the keys after all keys have been read.
template <typename C>
struct DecodeBlock {
  float values[C::WARPS][C::ROWS][C::DIM];  ///< with weights relative to `highest`; columns by place()
  float maxima[C::WARPS][C::ROWS];          ///< highest score of each warp
  float totals[C::WARPS][C::ROWS];          ///< sums of weights, relative to `highest`
  float highest[C::ROWS];                   ///< maximum over all warps

  /// Returns the index of column `d` of a row. Columns are permuted so that lanes with different rows write
  /// to different banks. Pairs of columns stay together.
  __device__ static int place(int row, int d) { return d ^ (row >> 1 & 3) << 3; }
};

/// Returns the bytes of shared memory of a block.
template <typename C>
constexpr int decode_bytes() {
  return std::max(C::RING_BYTES, static_cast<int>(sizeof(DecodeBlock<C>)));
}

/// Writes the sums of a warp, with weights relative to the highest score of all warps. Called by all threads
/// of the block. It contains two barriers, and the sums are readable after the second one.
template <typename C>
__device__ void leave_sums(const DecodeSums<C>& sums, DecodeBlock<C>& to) {
  const int warp = static_cast<int>(threadIdx.x) / C::LANES, lane = lane_of_warp();
  if (lane < 4) {
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      to.maxima[warp][8 * t + lane * 2] = sums.maximum[t][0];
      to.maxima[warp][8 * t + lane * 2 + 1] = sums.maximum[t][1];
    }
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * t + lane % 4 * 2 + i;
      float highest = to.maxima[0][row];
#pragma unroll
      for (int w = 1; w < C::WARPS; ++w) highest = fmaxf(highest, to.maxima[w][row]);
      const float factor = power_of_two_of(sums.maximum[t][i] - highest);
      const float total = sum_over_keys(sums.total[t][i]) * factor;
      const float of_values = C::FP8 ? factor * sums.unit / sums.kWeightScale : factor;
      if (lane < 4) {
        to.totals[warp][row] = total;
        if (warp == 0) to.highest[row] = highest;
      }
#pragma unroll
      for (int step = 0; step < C::STEPS; ++step) {
        const float first = sums.values[t][step][i] * of_values,
                    second = sums.values[t][step][2 + i] * of_values;
        const int column = DecodeTile<C>::value_column(step);
        float* const of_row = to.values[warp][row];
        if constexpr (DecodeTile<C>::SECOND_COLUMN == 1) {
          *reinterpret_cast<float2*>(of_row + to.place(row, column)) = make_float2(first, second);
        } else {
          of_row[to.place(row, column)] = first;
          of_row[to.place(row, column + DecodeTile<C>::SECOND_COLUMN)] = second;
        }
      }
    }
  }
  __syncthreads();
}

/// Adds the sums of the warps in order. If the block has all keys of its token (`whole`), writes the output.
/// Otherwise stores the sums of piece `piece` for combine_kernel. Called by all threads of the block.
template <typename C>
__device__ void end_decode(const DecodeBlock<C>& sums, const Cached& args, const Span& span,
                           const TileRows& tile, int piece, bool whole) {
  const int pairs = args.head_dim / 2;  // pairs of columns: head_dim is a multiple of eight
  for (int i = static_cast<int>(threadIdx.x); i < tile.rows * pairs; i += C::THREADS) {
    const int row = i / pairs, d = i % pairs * 2, head = tile.head(row);
    const auto pair_of = [&](int warp) {
      return *reinterpret_cast<const float2*>(&sums.values[warp][row][sums.place(row, d)]);
    };
    float2 value = pair_of(0);
    float total = sums.totals[0][row];
#pragma unroll
    for (int warp = 1; warp < C::WARPS; ++warp) {
      const float2 more = pair_of(warp);
      value.x += more.x;
      value.y += more.y;
      total += sums.totals[warp][row];
    }
    if (whole) {
      __nv_bfloat16* const to = out_row<__nv_bfloat16>(args, tile.token(0), head) + d;
      write_value(to[0], value.x / total);
      write_value(to[1], value.y / total);
      if (d == 0) args.leave_lse(tile.token(0), head, sums.highest[row], total);
    } else {
      const std::int64_t place = span.place(tile.token(0), head, piece, args);
      span.leave({sums.highest[row], total, value.x}, place, args.head_dim, d);
      span.leave({sums.highest[row], total, value.y}, place, args.head_dim, d + 1);
    }
  }
}

/// Block (KV head, token and its rows, piece): attention of a single token to a piece of its cache. The warps
/// process groups of keys in turn. The warp of a key depends only on the position of the key. The heads of a
/// token are neighbouring blocks. A memory transaction may be larger than the data of one head (it holds
/// eight scales). The other heads then find the rest in the L2 cache.
template <typename C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    decode_bf16_kernel(const __grid_constant__ Cached args, const __grid_constant__ Span span) {
  const int warp = static_cast<int>(threadIdx.x) / C::LANES, lane = lane_of_warp();
  const auto kv_heads = static_cast<unsigned>(args.kv_heads);
  const TileRows tile =
      rows_of_tile<C::ROWS, true>(args, span, blockIdx.x / kv_heads, static_cast<int>(blockIdx.x % kv_heads));
  const std::int64_t token = tile.token(0);
  const bool inside = args.inside(token);
  const std::int64_t last = inside ? args.positions[token] : 0, first = args.rule.first_key(last, 0);
  const std::int64_t from = blockIdx.y * span.piece, to = from + span.piece;
  const KeyRange range{first > from ? first : from, last + 1 < to ? last + 1 : to};
  const bool reads = inside && range.low < range.high;
  const DecodeKeys<C> cache(args, inside ? args.slots[token] : 0, tile.kv_head, range);
  constexpr int STRIDE = C::KEYS * C::WARPS;
  int begin = static_cast<int>(range.low) / STRIDE * STRIDE + warp * C::KEYS;
  if (begin + C::KEYS <= range.low) begin += STRIDE;
  std::uint8_t* const ring = dynamic_shared() + warp * C::WARP_BYTES;
  // The block that reads the key of the token also writes it to the cache. Earlier passes have written the
  // position of the token and the earlier cache contents. So both are read before the previous kernel has
  // ended.
  const bool own = range.high == last + 1;
  const std::int64_t there = reads ? (own ? last : range.high) : 0;
  std::int64_t rows[C::STAGES + 1];
#pragma unroll
  for (int i = 0; i <= C::STAGES; ++i) rows[i] = reads ? cache.first_row(begin + i * STRIDE) : 0;
#pragma unroll
  for (int i = 0; i < C::STAGES; ++i) {
    const int at = begin + i * STRIDE;
    if (at + C::KEYS <= there) cache.ask(ring + i * C::STAGE_BYTES, at, rows[i]);
  }
  wait_for_previous();
  let_next_begin();
  if (!inside && blockIdx.y == 0) write_outside<__nv_bfloat16>(args, tile);
  if (!reads) return;
  DecodeSums<C> sums;
  sums.begin(args, tile);
  if (own) {
    append<__nv_bfloat16, C::FP8>(args, token, tile.kv_head);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < C::STAGES; ++i) {
    const int at = begin + i * STRIDE;
    if (at + C::KEYS > there) cache.ask_last(ring + i * C::STAGE_BYTES, at, rows[i]);
  }
  std::int64_t next_row = rows[C::STAGES];
  for (int stage = 0; begin < range.high; begin += STRIDE) {
    std::uint8_t* const here = ring + stage * C::STAGE_BYTES;
    wait_for_copies<C::STAGES - 1>();
    __syncwarp();  // makes the copies of other lanes visible
    add_keys<C>(sums, here, begin, cache, args.rule);
    __syncwarp();  // all lanes have read the buffer
    cache.ask(here, begin + C::STAGES * STRIDE, next_row);
    next_row = cache.first_row(begin + (C::STAGES + 1) * STRIDE);
    stage = stage + 1 == C::STAGES ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // all warps have read their keys
  auto* const all = reinterpret_cast<DecodeBlock<C>*>(dynamic_shared());
  leave_sums<C>(sums, *all);
  end_decode<C>(*all, args, span, tile, static_cast<int>(blockIdx.y), span.of_one_block(first, last));
}

}  // namespace octet::ops::cuda
