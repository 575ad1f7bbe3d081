// Attention of lone tokens in bf16, bound by reading the cache: keys and values go from memory to the
// registers of tensor cores, without a way through shared memory and without barriers between. A tensor core
// multiplies 16 keys by 8 query heads, so that the rows of a KV head, which are few, fill its narrow side.
// Each lane reads runs of 16 bytes, whose order within a sum is another than the instruction's, the same for
// both operands. Codes of a cache in E4M3 become bf16, which is exact, on their way; scales are powers of
// two, those of keys multiply scores, those of values weights.
#pragma once

#include "cuda/attention/cached.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

template <int DIM_, int TILES_, bool FP8_>
struct LoneCut {
  static constexpr int DIM = DIM_;
  static constexpr int TILES = TILES_;  ///< of eight rows
  static constexpr bool FP8 = FP8_;     ///< the cache is E4M3
  static constexpr int WARPS = 4;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = 8 * TILES;
  static constexpr int KEYS = 16;  ///< that a warp takes at a time
  /// Elements of a key that a lane reads at a time; four lanes read a part of 4 * KEY_RUN.
  static constexpr int KEY_RUN = FP8 ? 16 : 8;
  static constexpr int KEY_PARTS = (DIM + 4 * KEY_RUN - 1) / (4 * KEY_RUN);
  /// The same of a value, of which eight lanes read a part.
  static constexpr int VALUE_RUN = FP8 && DIM % 128 == 0 ? 16 : 8;
  static constexpr int VALUE_PARTS = (DIM + 8 * VALUE_RUN - 1) / (8 * VALUE_RUN);
  static constexpr int VALUE_PAIRS = VALUE_RUN / 2;
  /// Pieces of a cache that a block may have one after the other: what their sums take of shared memory lets
  /// three blocks stand on a multiprocessor.
  static constexpr int MOST_PIECES = ROWS * DIM <= 1024 ? 4 : ROWS * DIM <= 2048 ? 2 : 1;
};

/// What the warps of a block have summed of a piece.
template <typename C>
struct LonePiece {
  float values[C::WARPS][C::ROWS][C::DIM];
  float maxima[C::WARPS][C::ROWS], totals[C::WARPS][C::ROWS];
};

/// COUNT 32-bit words of the cache, which nobody reads again: a block has all rows that want them. Not by way
/// of the read-only cache, since the block writes its token's own key itself.
template <int COUNT>
__device__ inline void read_words(std::uint32_t (&to)[COUNT], const void* from, bool inside) {
  static_assert(COUNT == 2 || COUNT == 4);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) to[i] = 0;
  if (!inside) return;
  if constexpr (COUNT == 4) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
  } else {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from)
                 : "memory");
  }
}

/// Two values in bf16 of two codes.
__device__ inline std::uint32_t bf16_of_codes(std::uint32_t codes) {
  const float2 x = decoded_pair(static_cast<std::uint16_t>(codes), 1.0f);
  return packed(__float2bfloat16_rn(x.x), __float2bfloat16_rn(x.y));
}

/// Words of a run as pairs in bf16: of a run in bf16 those that were read, of codes two for each.
template <bool FP8, int WORDS>
__device__ inline std::uint32_t pair_of(const std::uint32_t (&run)[WORDS], int pair) {
  if constexpr (FP8) {
    return bf16_of_codes(pair % 2 == 0 ? run[pair / 2] : run[pair / 2] >> 16);
  } else {
    return run[pair];
  }
}

/// What a lane has read of 16 keys: of keys lane / 4 and lane / 4 + 8.
template <typename C>
struct KeyRuns {
  static constexpr int WORDS = C::FP8 ? C::KEY_RUN / 4 : C::KEY_RUN / 2;
  std::uint32_t run[C::KEY_PARTS][2][WORDS];
  float scale[2];
};
/// What it has read of their values: of keys 2 (lane % 4), the next, and both eight further on; and the
/// scales of the values of the keys that it has of KeyRuns.
template <typename C>
struct ValueRuns {
  static constexpr int WORDS = C::FP8 ? C::VALUE_RUN / 4 : C::VALUE_RUN / 2;
  std::uint32_t run[C::VALUE_PARTS][4][WORDS];
  float scale[2];
};

/// The keys of a lone token that a block takes: of one slot and KV head.
template <typename C>
class LoneKeys {
 public:
  static constexpr int ELEMENT = C::FP8 ? 1 : 2;  ///< bytes

  __device__ LoneKeys(const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range)
      : args_(args),
        slot_(slot),
        kv_head_(kv_head),
        low_(static_cast<int>(range.low)),
        high_(static_cast<int>(range.high)),
        together_(args.together(C::KEYS)) {}

  /// The row of the first of 16 keys, where they follow each other; asked for ahead, for the page table is
  /// read.
  __device__ std::int64_t first_row(int begin) const {
    return together_ && begin < high_ ? args_.row(slot_, begin) : 0;
  }
  __device__ bool inside(int key) const { return key >= low_ && key < high_; }
  __device__ std::int64_t row(int begin, std::int64_t first, int i) const {
    return together_ ? first + i : args_.row(slot_, begin + i);
  }

  /// Keys [begin, begin + 16); `first`: what first_row() says of them. What is outside is zero.
  __device__ void read(KeyRuns<C>& to, int begin, std::int64_t first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % 4 * C::KEY_RUN;
    const auto* keys = static_cast<const std::uint8_t*>(args_.k_cache);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane / 4 + 8 * half;
      const bool here = inside(begin + i);
      const std::int64_t at = here ? row(begin, first, i) : 0;
      const std::uint8_t* from = keys + (args_.element(at, kv_head_) + column) * ELEMENT;
#pragma unroll
      for (int part = 0; part < C::KEY_PARTS; ++part) {
        const int behind = part * 4 * C::KEY_RUN;
        read_words(to.run[part][half], from + behind * ELEMENT, here && column + behind < args_.head_dim);
      }
      if constexpr (C::FP8) to.scale[half] = here ? args_.k_scale_inv[at * args_.kv_heads + kv_head_] : 0.0f;
    }
  }
  __device__ void read(ValueRuns<C>& to, int begin, std::int64_t first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4 * C::VALUE_RUN;
    const auto* values = static_cast<const std::uint8_t*>(args_.v_cache);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = lane % 4 * 2 + k % 2 + k / 2 * 8;
      const bool here = inside(begin + i);
      const std::int64_t at = here ? row(begin, first, i) : 0;
      const std::uint8_t* from = values + (args_.element(at, kv_head_) + column) * ELEMENT;
#pragma unroll
      for (int part = 0; part < C::VALUE_PARTS; ++part) {
        const int behind = part * 8 * C::VALUE_RUN;
        read_words(to.run[part][k], from + behind * ELEMENT, here && column + behind < args_.head_dim);
      }
    }
    if constexpr (C::FP8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane / 4 + 8 * half;
        const bool here = inside(begin + i);
        const std::int64_t at = here ? row(begin, first, i) : 0;
        to.scale[half] = here ? args_.v_scale_inv[at * args_.kv_heads + kv_head_] : 0.0f;
      }
    }
  }

 private:
  const Cached& args_;
  std::int64_t slot_;
  int kv_head_;
  int low_, high_;
  bool together_;
};

/// A warp's queries, and what it has summed for them. A lane has of tile t rows 8 t + 2 (lane % 4) and the
/// next.
template <typename C>
struct LoneSums {
  static constexpr int PAIRS = C::KEY_RUN / 2;
  std::uint32_t queries[C::TILES][C::KEY_PARTS][PAIRS];  ///< row 8 t + lane / 4, the columns of KeyRuns
  float values[C::TILES][C::VALUE_PARTS][C::VALUE_PAIRS][4];
  float maximum[C::TILES][2];  ///< of scores, to the base of two
  float total[C::TILES][2];    ///< of weights: this lane's keys

  __device__ void begin(const Cached& args, const TileRows& tile) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto* qkv = static_cast<const __nv_bfloat16*>(args.qkv);
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      const int row = 8 * t + lane / 4;
      const bool here = row < tile.rows;
      const __nv_bfloat16* from = qkv + tile.token(0) * args.qkv_ld +
                                  (here ? static_cast<std::int64_t>(tile.head(row)) * args.head_dim : 0);
#pragma unroll
      for (int part = 0; part < C::KEY_PARTS; ++part) {
#pragma unroll
        for (int quad = 0; quad < PAIRS / 4; ++quad) {
          const int column = part * 4 * C::KEY_RUN + lane % 4 * C::KEY_RUN + 8 * quad;
          std::uint32_t words[4];
          read_words(words, from + column, here && column < args.head_dim);
#pragma unroll
          for (int i = 0; i < 4; ++i) queries[t][part][4 * quad + i] = words[i];
        }
      }
    }
    clear();
  }
  __device__ void clear() {
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
      for (int part = 0; part < C::VALUE_PARTS; ++part) {
#pragma unroll
        for (int pair = 0; pair < C::VALUE_PAIRS; ++pair) {
#pragma unroll
          for (int e = 0; e < 4; ++e) values[t][part][pair][e] = 0.0f;
        }
      }
      maximum[t][0] = maximum[t][1] = kLowest;
      total[t][0] = total[t][1] = 0.0f;
    }
  }
};

/// The largest, or the sum, over the eight lanes that have the same rows.
__device__ inline float highest_over_keys(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}
__device__ inline float sum_over_keys(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}

/// Products of 16 keys and all queries: keys lane / 4 and lane / 4 + 8 by rows 2 (lane % 4) and the next.
template <typename C>
__device__ void multiply_keys(float (&products)[C::TILES][4], const LoneSums<C>& sums,
                              const KeyRuns<C>& keys) {
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[t][e] = 0.0f;
  }
#pragma unroll
  for (int part = 0; part < C::KEY_PARTS; ++part) {
#pragma unroll
    for (int pair = 0; pair < LoneSums<C>::PAIRS; pair += 2) {
      const std::uint32_t a[4] = {
          pair_of<C::FP8>(keys.run[part][0], pair), pair_of<C::FP8>(keys.run[part][1], pair),
          pair_of<C::FP8>(keys.run[part][0], pair + 1), pair_of<C::FP8>(keys.run[part][1], pair + 1)};
#pragma unroll
      for (int t = 0; t < C::TILES; ++t) {
        multiply_add(products[t], a, sums.queries[t][part][pair], sums.queries[t][part][pair + 1]);
      }
    }
  }
}

/// Makes weights of the products of tile `t`, and puts them where the values' products want them: of row lane
/// / 4 those of keys 2 (lane % 4) and the next, and of both eight further on.
template <typename C>
__device__ void weigh(std::uint32_t (&weights)[2], LoneSums<C>& sums, int t, const float (&products)[4],
                      const KeyRuns<C>& keys, const float (&value_scale)[2], const ScoreRule& rule,
                      const bool (&seen)[2]) {
  float scores[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float product = products[e], slope;
    if constexpr (C::FP8) product *= keys.scale[e / 2];
    scores[e] = seen[e / 2] ? rule.score(product, slope) * kLog2E : kLowest;
  }
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float highest = fmaxf(sums.maximum[t][i], highest_over_keys(fmaxf(scores[i], scores[2 + i])));
    factor[i] = exp2f(sums.maximum[t][i] - highest);
    sums.maximum[t][i] = highest;
    sums.total[t][i] *= factor[i];
  }
  // Mostly the highest score has been seen before.
  if (__any_sync(0xFFFFFFFFu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
    for (int part = 0; part < C::VALUE_PARTS; ++part) {
#pragma unroll
      for (int pair = 0; pair < C::VALUE_PAIRS; ++pair) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.values[t][part][pair][e] *= factor[e % 2];
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __nv_bfloat16 weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float score = scores[2 * half + i];
      // What nobody sees has no weight, also where nothing is seen yet.
      const float exact = score == kLowest ? 0.0f : exp2f(score - sums.maximum[t][i]);
      weight[i] = __float2bfloat16_rn(exact);
      sums.total[t][i] += __bfloat162float(weight[i]);
      if constexpr (C::FP8) weight[i] = __float2bfloat16_rn(__bfloat162float(weight[i]) * value_scale[half]);
    }
    weights[half] = transposed(packed(weight[0], weight[1]));
  }
}

/// Adds values by their weights to the sums of tile `t`.
template <typename C>
__device__ void add_values(LoneSums<C>& sums, int t, const std::uint32_t (&weights)[2],
                           const ValueRuns<C>& from) {
  constexpr std::uint32_t LOW = 0x5410, HIGH = 0x7632;  // halves of two words
#pragma unroll
  for (int part = 0; part < C::VALUE_PARTS; ++part) {
#pragma unroll
    for (int pair = 0; pair < C::VALUE_PAIRS; ++pair) {
      std::uint32_t x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = pair_of<C::FP8>(from.run[part][k], pair);
      const std::uint32_t a[4] = {__byte_perm(x[0], x[1], LOW), __byte_perm(x[0], x[1], HIGH),
                                  __byte_perm(x[2], x[3], LOW), __byte_perm(x[2], x[3], HIGH)};
      multiply_add(sums.values[t][part][pair], a, weights[0], weights[1]);
    }
  }
}

/// Leaves a warp's sums of a piece.
template <typename C>
__device__ void leave_sums(const LoneSums<C>& sums, LonePiece<C>& to) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * t + lane % 4 * 2 + i;
      const float total = sum_over_keys(sums.total[t][i]);
      if (lane < 4) {
        to.maxima[warp][row] = sums.maximum[t][i];
        to.totals[warp][row] = total;
      }
#pragma unroll
      for (int part = 0; part < C::VALUE_PARTS; ++part) {
#pragma unroll
        for (int pair = 0; pair < C::VALUE_PAIRS; ++pair) {
          const int column = (part * 8 + lane / 4) * C::VALUE_RUN + 2 * pair;
          if (column >= C::DIM) continue;
          to.values[warp][row][column] = sums.values[t][part][pair][i];
          to.values[warp][row][column + 1] = sums.values[t][part][pair][2 + i];
        }
      }
    }
  }
}

/// Puts the sums of a block's `count` pieces together, of which the first is piece `first`. Writes what comes
/// out, or, where the token sees keys of other blocks too, the share of each piece: the bits are the same
/// however many pieces a block has.
template <typename C>
__device__ void finish_lone_rows(const Cached& args, const Span& span, const TileRows& tile, int first,
                                 int count, bool whole, const LonePiece<C>* pieces) {
  const std::int64_t token = tile.token(0);
  for (int i = static_cast<int>(threadIdx.x); i < tile.rows * args.head_dim; i += C::THREADS) {
    const int row = i / args.head_dim, d = i % args.head_dim, head = tile.head(row);
    PieceSum sums[C::MOST_PIECES];
#pragma unroll
    for (int p = 0; p < C::MOST_PIECES; ++p) {
      if (p >= count) continue;
      sums[p] = put_together<C::WARPS>(C::WARPS, [&](int warp) {
        return PieceSum{pieces[p].maxima[warp][row], pieces[p].totals[warp][row],
                        pieces[p].values[warp][row][d]};
      });
      if (!whole) span.leave(sums[p], span.place(token, head, first + p, args), args.head_dim, d);
    }
    if (!whole) continue;
    const PieceSum all = put_together<C::MOST_PIECES>(count, [&](int p) { return sums[p]; });
    write_value(out_row<__nv_bfloat16>(args, token, head)[d], all.value / all.total);
  }
}

/// Block (token and its rows, KV head, run of pieces): a lone token attends to pieces of its cache. Its warps
/// take runs of 16 keys in turns; which of them sums a key follows from the key's position alone.
template <typename C>
__global__ void __launch_bounds__(C::THREADS, C::DIM > 128 || C::TILES > 1 ? 2 : 3)
    lone_bf16_kernel(const Cached args, const Span span) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
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
  std::int64_t row = reads ? cache.first_row(begin) : 0,
               next_row = reads ? cache.first_row(begin + STRIDE) : 0;
  KeyRuns<C> keys;
  ValueRuns<C> values;
  // The token's own key is put into the cache by the block that reads it. Where a token stands, and what lies
  // in the cache in front of it, kernels of earlier passes have written: both are read before the kernel in
  // front of this one has ended.
  const bool own = range.high == last + 1;
  const bool early = reads && begin + C::KEYS <= (own ? last : range.high);
  if (early) {
    cache.read(keys, begin, row);
    cache.read(values, begin, row);
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
  if (!early) {
    cache.read(keys, begin, row);
    cache.read(values, begin, row);
  }
  auto* pieces = reinterpret_cast<LonePiece<C>*>(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_piece = static_cast<int>(range.low / span.piece);
  const int count = static_cast<int>((range.high - 1) / span.piece) + 1 - first_piece;
  for (int p = 0; p < count; ++p) {
    const std::int64_t piece_end = (first_piece + p + 1) * span.piece;
    const int end = static_cast<int>(piece_end < range.high ? piece_end : range.high);
    for (; begin < end; begin += STRIDE) {
      float products[C::TILES][4];
      multiply_keys<C>(products, sums, keys);
      const bool seen[2] = {cache.inside(begin + lane / 4), cache.inside(begin + lane / 4 + 8)};
      std::uint32_t weights[C::TILES][2];
#pragma unroll
      for (int t = 0; t < C::TILES; ++t)
        weigh<C>(weights[t], sums, t, products[t], keys, values.scale, args.rule, seen);
      const int next = begin + STRIDE;
      row = next_row;
      cache.read(keys, next, row);
#pragma unroll
      for (int t = 0; t < C::TILES; ++t) add_values<C>(sums, t, weights[t], values);
      cache.read(values, next, row);
      next_row = cache.first_row(next + STRIDE);
    }
    leave_sums<C>(sums, pieces[p]);
    sums.clear();
  }
  __syncthreads();
  finish_lone_rows<C>(args, span, tile, first_piece, count, span.of_one_block(first, last), pieces);
}

}  // namespace octet::ops::cuda
