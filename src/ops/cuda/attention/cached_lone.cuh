// Attention of lone tokens in bf16, bound by reading the cache: a block has the rows of a token and KV head,
// its warps take keys in turns, and what they have summed of a piece of the cache is put together in their
// order.
#pragma once

#include <algorithm>

#include "cuda/attention/lone_sums.cuh"

namespace octet::ops::cuda {

/// What the warps of a block have summed. It takes the place of the keys, when all have been read.
template <typename C>
struct LoneBlock {
  float values[C::WARPS][C::ROWS][C::DIM];  ///< by weights from the highest score of all warps, see place()
  float maxima[C::WARPS][C::ROWS];          ///< the highest score of each warp
  float totals[C::WARPS][C::ROWS];          ///< as values
  float highest[C::ROWS];                   ///< of all warps

  /// Where column `d` of a row lies: columns are exchanged so that lanes with other rows leave theirs in
  /// other banks. Pairs of columns stay together.
  __device__ static int place(int row, int d) { return d ^ (row >> 1 & 3) << 3; }
};

/// Shared memory of a block.
template <typename C>
constexpr int lone_bytes() {
  return std::max(C::RING_BYTES, static_cast<int>(sizeof(LoneBlock<C>)));
}

/// Leaves a warp's sums, all warps' by weights from the highest score among them. All threads of the block;
/// two barriers, behind the second of which the sums are there.
template <typename C>
__device__ void leave_sums(const LoneSums<C>& sums, LoneBlock<C>& to) {
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
        const int column = LoneTile<C>::value_column(step);
        float* const of_row = to.values[warp][row];
        if constexpr (LoneTile<C>::SECOND_COLUMN == 1) {
          *reinterpret_cast<float2*>(of_row + to.place(row, column)) = make_float2(first, second);
        } else {
          of_row[to.place(row, column)] = first;
          of_row[to.place(row, column + LoneTile<C>::SECOND_COLUMN)] = second;
        }
      }
    }
  }
  __syncthreads();
}

/// Puts the sums of the warps together, in their order. Writes what comes out where the block has all keys
/// that its token sees (`whole`), or leaves its share of piece `piece` for combine_kernel. All threads of the
/// block.
template <typename C>
__device__ void end_lone(const LoneBlock<C>& sums, const Cached& args, const Span& span, const TileRows& tile,
                         int piece, bool whole) {
  const int pairs = args.head_dim / 2;  // of columns: a head has a multiple of eight
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
    } else {
      const std::int64_t place = span.place(tile.token(0), head, piece, args);
      span.leave({sums.highest[row], total, value.x}, place, args.head_dim, d);
      span.leave({sums.highest[row], total, value.y}, place, args.head_dim, d + 1);
    }
  }
}

/// Block (KV head, token and its rows, piece): a lone token attends to a piece of its cache. Its warps take
/// runs of keys in turns; which of them sums a key follows from the key's position alone. The heads of a
/// token are neighbours: where memory gives more than a head has in a row (of scales eight), the others find
/// the rest in the GPU's cache.
template <typename C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    lone_bf16_kernel(const __grid_constant__ Cached args, const __grid_constant__ Span span) {
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
  const LoneKeys<C> cache(args, inside ? args.slots[token] : 0, tile.kv_head, range);
  constexpr int STRIDE = C::KEYS * C::WARPS;
  int begin = static_cast<int>(range.low) / STRIDE * STRIDE + warp * C::KEYS;
  if (begin + C::KEYS <= range.low) begin += STRIDE;
  std::uint8_t* const ring = dynamic_shared() + warp * C::WARP_BYTES;
  // The token's own key is put into the cache by the block that reads it. Where a token stands, and what lies
  // in the cache in front of it, kernels of earlier passes have written: both are read before the kernel in
  // front of this one has ended.
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
  LoneSums<C> sums;
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
    __syncwarp();  // for what other lanes have asked for
    add_keys<C>(sums, here, begin, cache, args.rule);
    __syncwarp();  // all have read the stage
    cache.ask(here, begin + C::STAGES * STRIDE, next_row);
    next_row = cache.first_row(begin + (C::STAGES + 1) * STRIDE);
    stage = stage + 1 == C::STAGES ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // no warp's keys are read any more
  auto* const all = reinterpret_cast<LoneBlock<C>*>(dynamic_shared());
  leave_sums<C>(sums, *all);
  end_lone<C>(*all, args, span, tile, static_cast<int>(blockIdx.y), span.of_one_block(first, last));
}

}  // namespace octet::ops::cuda
