// Attention of lone tokens in bf16, bound by reading the cache: a block has the rows of a token and KV head,
// its warps take keys in turns, and what they have summed of a piece of the cache is put together in their
// order.
#pragma once

#include "cuda/attention/lone_sums.cuh"

namespace octet::ops::cuda {

/// What the warps of a block have summed of a piece.
template <typename C>
struct LonePiece {
  float values[C::WARPS][C::ROWS][C::DIM];  ///< by weights from the highest score of all warps, see place()
  float maxima[C::WARPS][C::ROWS];          ///< the highest score of each warp
  float totals[C::WARPS][C::ROWS];          ///< as values
  float highest[C::ROWS];                   ///< of all warps

  /// Where column `d` of a row lies: columns are exchanged so that lanes with other rows leave theirs in
  /// other banks. Pairs of columns stay together.
  __device__ static int place(int row, int d) { return d ^ (row >> 1 & 3) << 3; }
};
/// What they have summed together.
template <typename C>
struct LoneShare {
  float values[C::ROWS][C::DIM];
  float highest[C::ROWS], totals[C::ROWS];
};

/// Shared memory of a block that takes so many pieces.
template <typename C>
constexpr int lone_bytes(int pieces) {
  const int shares = pieces > 1 ? pieces * static_cast<int>(sizeof(LoneShare<C>)) : 0;
  return C::RING_BYTES + static_cast<int>(sizeof(LonePiece<C>)) + shares;
}

/// Leaves a warp's sums of a piece, all warps' by weights from the highest score among them. All threads of
/// the block; two barriers, behind the second of which the piece is there.
template <typename C>
__device__ void leave_sums(const LoneSums<C>& sums, LonePiece<C>& to) {
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

/// What becomes of the pieces of a block, of which the first is piece `first`: `whole` says that the token
/// sees no keys of other blocks.
template <typename C>
struct LoneEnd {
  const Cached& args;
  const Span& span;
  const TileRows& tile;
  int first, count;
  bool whole;
  LonePiece<C>* warps;
  LoneShare<C>* shares;  ///< [count], where there are several

  /// Act(row, column) for the first ones of the pairs of columns that this thread has of all rows, the same
  /// ones each time. A head's columns are a multiple of eight.
  template <typename Act>
  __device__ void each_pair(Act&& act) const {
    const int pairs = args.head_dim / 2;
    for (int i = static_cast<int>(threadIdx.x); i < tile.rows * pairs; i += C::THREADS)
      act(i / pairs, i % pairs * 2);
  }
  __device__ void write(int row, int d, const PieceSum& all) const {
    write_value(out_row<__nv_bfloat16>(args, tile.token(0), tile.head(row))[d], all.value / all.total);
  }

  /// Puts the sums of the warps together, in their order, of the block's piece `p`. Leaves them for
  /// combine_kernel where other blocks have pieces too, for finish() where this one has several.
  __device__ void end_piece(int p) const {
    each_pair([&](int row, int d) {
      PieceSum first{warps->highest[row], warps->totals[0][row]}, second = first;
      const auto pair = [&](int warp) {
        return *reinterpret_cast<const float2*>(&warps->values[warp][row][warps->place(row, d)]);
      };
      float2 sum = pair(0);
#pragma unroll
      for (int warp = 1; warp < C::WARPS; ++warp) {
        const float2 more = pair(warp);
        sum.x += more.x;
        sum.y += more.y;
        first.total += warps->totals[warp][row];
      }
      first.value = sum.x;
      second.value = sum.y;
      second.total = first.total;
      if (!whole) {
        const std::int64_t place = span.place(tile.token(0), tile.head(row), this->first + p, args);
        span.leave(first, place, args.head_dim, d);
        span.leave(second, place, args.head_dim, d + 1);
      } else if (count == 1) {
        write(row, d, first);
        write(row, d + 1, second);
      } else {
        *reinterpret_cast<float2*>(&shares[p].values[row][d]) = sum;
        if (d > 0) return;
        shares[p].highest[row] = first.highest;
        shares[p].totals[row] = first.total;
      }
    });
  }
  /// Puts the pieces together: the bits are the same however many pieces a block has.
  __device__ void finish() const {
    if (!whole || count == 1) return;
    __syncthreads();
    each_pair([&](int row, int d) {
      for (int i = d; i < d + 2; ++i) {
        write(row, i, put_together<C::MOST_PIECES>(count, [&](int p) {
                return PieceSum{shares[p].highest[row], shares[p].totals[row], shares[p].values[row][i]};
              }));
      }
    });
  }
};

/// Block (token and its rows, KV head, run of pieces): a lone token attends to pieces of its cache. Its warps
/// take runs of keys in turns; which of them sums a key follows from the key's position alone.
template <typename C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    lone_bf16_kernel(const __grid_constant__ Cached args, const __grid_constant__ Span span) {
  const int warp = static_cast<int>(threadIdx.x) / C::LANES, lane = lane_of_warp();
  const TileRows tile = rows_of_tile<C::ROWS, true>(args, span, blockIdx.x, static_cast<int>(blockIdx.y));
  const std::int64_t token = tile.token(0);
  const bool inside = args.inside(token);
  const std::int64_t last = inside ? args.positions[token] : 0, first = args.rule.first_key(last, 0);
  const std::int64_t from = blockIdx.z * span.keys_of_block(), to = from + span.keys_of_block();
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
  if (!inside && blockIdx.z == 0) write_outside<__nv_bfloat16>(args, tile);
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
  const int first_piece = static_cast<int>(range.low / span.piece);
  const int count = static_cast<int>((range.high - 1) / span.piece) + 1 - first_piece;
  auto* const warps = reinterpret_cast<LonePiece<C>*>(dynamic_shared() + C::RING_BYTES);
  const LoneEnd<C> ending{.args = args,
                          .span = span,
                          .tile = tile,
                          .first = first_piece,
                          .count = count,
                          .whole = span.of_one_block(first, last),
                          .warps = warps,
                          .shares = reinterpret_cast<LoneShare<C>*>(warps + 1)};
  std::int64_t next_row = rows[C::STAGES];
  int stage = 0;
  for (int p = 0; p < count; ++p) {
    const std::int64_t piece_end = (first_piece + p + 1) * span.piece;
    const int end = static_cast<int>(piece_end < range.high ? piece_end : range.high);
    for (; begin < end; begin += STRIDE) {
      std::uint8_t* const here = ring + stage * C::STAGE_BYTES;
      wait_for_copies<C::STAGES - 1>();
      __syncwarp();  // for what other lanes have asked for
      add_keys<C>(sums, here, begin, cache, args.rule);
      __syncwarp();  // all have read the stage
      cache.ask(here, begin + C::STAGES * STRIDE, next_row);
      next_row = cache.first_row(begin + (C::STAGES + 1) * STRIDE);
      stage = stage + 1 == C::STAGES ? 0 : stage + 1;
    }
    leave_sums<C>(sums, *warps);
    sums.clear();
    ending.end_piece(p);
  }
  ending.finish();
}

}  // namespace octet::ops::cuda
