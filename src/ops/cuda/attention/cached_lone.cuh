// Attention of lone tokens in bf16, bound by reading the cache: a warp asks for the keys and values that it
// will multiply some steps ahead, and they come to a place of its own in shared memory, so that no warp waits
// for another. A tensor core multiplies 16 keys by 8 query heads, so that the rows of a KV head, which are
// few, fill its narrow side.
//
// Codes of a cache in E4M3 become fp16, which is exact. Queries do, too, by a power of two for each row that
// brings its largest element near the largest fp16: what is rounded then is less than 2^-38 of it. Weights
// become fp16 behind the scales of their values, powers of two, over the largest scale so far.
#pragma once

#include "cuda/attention/cached.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

template <int DIM_, int TILES_, bool FP8_>
struct LoneCut {
  static constexpr int DIM = DIM_;
  static constexpr int TILES = TILES_;         ///< of eight rows
  static constexpr bool FP8 = FP8_;            ///< the cache is E4M3
  static constexpr int ELEMENT = FP8 ? 1 : 2;  ///< bytes of one of the cache
  static constexpr int WARPS = 4;
  static constexpr int LANES = 32;
  static constexpr int THREADS = LANES * WARPS;
  static constexpr int ROWS = 8 * TILES;
  static constexpr int TILE_KEYS = 16;  ///< of a tensor core's step
  /// Tiles of keys that a warp takes at a time: two hide each other's waits, where there is room.
  static constexpr int TILES_OF_KEYS = FP8 && DIM <= 128 ? 2 : 1;
  static constexpr int KEYS = TILE_KEYS * TILES_OF_KEYS;
  static constexpr int STEPS = DIM / 16;  ///< of a tensor core in a head's columns
  /// A key lies in shared memory in parts of eight quads of 16 bytes each, and the keys' parts behind each
  /// other.
  static constexpr int QUADS = DIM * ELEMENT / 16;
  static constexpr int PARTS = (QUADS + 7) / 8;
  static constexpr int PART_BYTES = TILE_KEYS * 128;
  static constexpr int TILE_BYTES = PARTS * PART_BYTES;  ///< of a tile's keys, or of its values
  /// A tile's keys, values, and in E4M3 the scales of both.
  static constexpr int ROOM = 2 * TILE_BYTES + (FP8 ? 2 * TILE_KEYS * 4 : 0);
  static constexpr int STAGE_BYTES = TILES_OF_KEYS * ROOM;
  /// How many times KEYS a warp has asked for ahead.
  static constexpr int STAGES = STAGE_BYTES > 5120 ? 2 : 4;
  static constexpr int WARP_BYTES = STAGES * STAGE_BYTES;
  static constexpr int RING_BYTES = WARPS * WARP_BYTES;
  /// Blocks that stand on a multiprocessor at a time.
  static constexpr int BLOCKS = RING_BYTES > 80 * 1024 || TILES > 1 ? 1 : 2;
  /// Pieces of a cache that a block may have one after the other: what is kept of them lies in shared memory.
  static constexpr int MOST_PIECES = ROWS * DIM <= 1024 ? 8 : ROWS * DIM <= 2048 ? 2 : 1;
};

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

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % 32;
}
/// Two values rounded to bf16, the first in the lower half.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return packed(both.x, both.y);
}
/// Two codes in the lower half as fp16.
__device__ inline std::uint32_t fp16_of_codes(std::uint32_t codes) {
  const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return static_cast<std::uint32_t>(both.x) | static_cast<std::uint32_t>(both.y) << 16;
}
/// Two values rounded to fp16, the first in the lower half.
__device__ inline std::uint32_t fp16_pair(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
/// Two to the power of x; zero where that is less than the smallest normal number.
__device__ inline float power_of_two_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// One over a power of two between 2^-126 and 2^126.
__device__ inline float inverse_of_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}

/// The keys of a lone token that a block takes: of one slot and KV head.
template <typename C>
class LoneKeys {
 public:
  __device__ LoneKeys(const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range)
      : args_(args),
        slot_(slot),
        kv_head_(kv_head),
        low_(static_cast<int>(range.low)),
        high_(static_cast<int>(range.high)),
        together_(args.together(C::KEYS)),
        first_whole_(together_ && args.head_dim == C::DIM ? low_ : high_),
        row_bytes_(static_cast<int>(args.row_stride) * C::ELEMENT) {
    const int lane = lane_of_warp();
    const std::int64_t behind = args.element(lane / 8, kv_head) * C::ELEMENT + lane % 8 * 16;
    keys_ = static_cast<const std::uint8_t*>(args.k_cache) + behind;
    values_ = static_cast<const std::uint8_t*>(args.v_cache) + behind;
    if constexpr (C::FP8) {
      scales_ = (lane < C::TILE_KEYS ? args.k_scale_inv : args.v_scale_inv) +
                static_cast<std::int64_t>(lane % C::TILE_KEYS) * args.kv_heads + kv_head;
    }
  }

  /// The row of the first of C::KEYS keys, where they follow each other; asked for ahead, for the page table
  /// is read.
  __device__ std::int64_t first_row(int begin) const {
    return together_ && begin < high_ ? args_.row(slot_, begin) : 0;
  }
  __device__ bool inside(int key) const { return key >= low_ && key < high_; }

  /// Asks for keys [begin, begin + C::KEYS) and their values, which come to a stage of the warp; `first`:
  /// what first_row() says of them. What is outside becomes zero. A group of the thread's copies; all threads
  /// of the warp.
  __device__ void ask(std::uint8_t* stage, int begin, std::int64_t first) const {
    if (begin >= first_whole_ && begin + C::KEYS <= high_) {
#pragma unroll
      for (int tile = 0; tile < C::TILES_OF_KEYS; ++tile)
        ask_whole(stage + tile * C::ROOM, first + tile * C::TILE_KEYS);
      end_copies();
    } else {
      ask_last(stage, begin, first);
    }
  }
  /// The same for keys of which some are outside, or the last ones.
  __device__ void ask_last(std::uint8_t* stage, int begin, std::int64_t first) const {
#pragma unroll 1
    for (int at = 0; at < C::KEYS && begin < high_; at += C::TILE_KEYS)
      ask_some(*this, stage + at / C::TILE_KEYS * C::ROOM, begin + at, first + at);
    end_copies();
  }

 private:
  /// Of keys and values the row of the cache that this lane asks for as the j-th goes here: eight lanes have
  /// a row, a lane 16 bytes of every part of it.
  __device__ static std::uint8_t* row_of(std::uint8_t* stage, int j) {
    const int lane = lane_of_warp(), key = j * 4 + lane / 8;
    return stage + key * 128 + (lane % 8 ^ key % 8) * 16;
  }
  /// A tile of keys of all columns, whose rows follow each other.
  __device__ void ask_whole(std::uint8_t* stage, std::int64_t first) const {
    const int lane = lane_of_warp();
    const std::int64_t at = first * row_bytes_;
#pragma unroll
    for (int j = 0; j < C::TILE_KEYS / 4; ++j) {
      const std::int64_t behind = at + j * 4 * row_bytes_;
      std::uint8_t* const to = row_of(stage, j);
#pragma unroll
      for (int part = 0; part < C::PARTS; ++part) {
        if (C::QUADS % 8 != 0 && part * 8 + lane % 8 >= C::QUADS) continue;
        copy_16(to + part * C::PART_BYTES, keys_ + behind + part * 128);
        copy_16(to + C::TILE_BYTES + part * C::PART_BYTES, values_ + behind + part * 128);
      }
    }
    if constexpr (C::FP8) copy_4(scale_of(stage), scales_ + first * args_.kv_heads, true);
  }
  /// Some keys of a tile, or not all columns. Not inlined, since it is rarely needed and has much code.
  __device__ static __noinline__ void ask_some(LoneKeys cache, std::uint8_t* stage, int begin,
                                               std::int64_t first) {
    const int lane = lane_of_warp();
#pragma unroll 1
    for (int j = 0; j < C::TILE_KEYS / 4; ++j) {
      const int i = j * 4 + lane / 8;
      const std::int64_t behind = (cache.row(begin, first, i) - lane / 8) * cache.row_bytes_;
      std::uint8_t* const to = row_of(stage, j);
#pragma unroll 1
      for (int part = 0; part < C::PARTS; ++part) {
        const int quad = part * 8 + lane % 8;
        const bool here = cache.inside(begin + i) && quad * 16 < cache.args_.head_dim * C::ELEMENT;
        const std::int64_t from = here ? behind + part * 128 : 0;
        copy_16(to + part * C::PART_BYTES, cache.keys_ + from, here);
        copy_16(to + C::TILE_BYTES + part * C::PART_BYTES, cache.values_ + from, here);
      }
    }
    if constexpr (C::FP8) {
      const int i = lane % C::TILE_KEYS;
      const std::int64_t behind = (cache.row(begin, first, i) - i) * cache.args_.kv_heads;
      copy_4(scale_of(stage), cache.scales_ + behind, cache.inside(begin + i));
    }
  }
  /// Where the scale that this lane asks for goes: half of the lanes ask for those of keys.
  __device__ static std::uint8_t* scale_of(std::uint8_t* stage) {
    return stage + 2 * C::TILE_BYTES + lane_of_warp() * 4;
  }
  /// The row of key begin + i, or the i-th of the cache where that is outside.
  __device__ std::int64_t row(int begin, std::int64_t first, int i) const {
    if (!inside(begin + i)) return i;
    return together_ ? first + i : args_.row(slot_, begin + i);
  }

  const Cached& args_;
  std::int64_t slot_;
  int kv_head_;
  int low_, high_;
  bool together_;
  int first_whole_;  ///< from here on C::KEYS keys may be asked for as whole ones
  /// What this lane reads first of keys and values from the cache's first row on, and the scale.
  const std::uint8_t *keys_, *values_;
  const float* scales_;
  int row_bytes_;
};

/// What a warp has in shared memory of a tile of keys and their values, as operands of tensor cores. All
/// threads of the warp read together.
template <typename C>
class LoneTile {
 public:
  __device__ explicit LoneTile(const std::uint8_t* stage)
      : stage_(stage),
        keys_(shared_address(stage) + quad_of(lane_of_warp() % 16, lane_of_warp() / 16)),
        values_(shared_address(stage) + C::TILE_BYTES +
                (C::FP8 ? quad_of(lane_of_warp() % 16, lane_of_warp() / 16)
                        : quad_of(lane_of_warp() % 8 + lane_of_warp() / 16 * 8, lane_of_warp() / 8 % 2))) {}

  /// Columns of two steps from 32 * pair on: of keys lane / 4 and lane / 4 + 8, in the order of
  /// query_column().
  __device__ void read_keys(std::uint32_t (&first)[4], std::uint32_t (&second)[4], int pair) const {
    if constexpr (C::FP8) {
      std::uint32_t codes[4];
      load_matrices(codes, two_quads(keys_, pair));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        first[i] = fp16_of_codes(codes[i] & 0xFFFF);
        first[2 + i] = fp16_of_codes(codes[i] >> 16);
        second[i] = fp16_of_codes(codes[2 + i] & 0xFFFF);
        second[2 + i] = fp16_of_codes(codes[2 + i] >> 16);
      }
    } else {
      load_matrices(first, two_quads(keys_, 2 * pair));
      load_matrices(second, two_quads(keys_, 2 * pair + 1));
    }
  }
  /// The two columns of a step that the i-th register of a query has, the first one.
  __device__ static int query_column(int step, int i) {
    const int place = lane_of_warp() % 4;
    return step * 16 + (C::FP8 ? place * 4 + i * 2 : place * 2 + i * 8);
  }

  /// Values of two steps from column 32 * pair on: columns value_column() by keys 2 (lane % 4), the next, and
  /// both eight further on.
  __device__ void read_values(std::uint32_t (&first)[4], std::uint32_t (&second)[4], int pair) const {
    if constexpr (C::FP8) {
      std::uint32_t codes[4];
      load_transposed(codes, two_quads(values_, pair));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        first[2 * i] = fp16_of_codes(__byte_perm(codes[i], 0, 0x4420));
        first[2 * i + 1] = fp16_of_codes(__byte_perm(codes[i], 0, 0x4431));
        second[2 * i] = fp16_of_codes(__byte_perm(codes[2 + i], 0, 0x4420));
        second[2 * i + 1] = fp16_of_codes(__byte_perm(codes[2 + i], 0, 0x4431));
      }
    } else {
      load_transposed(first, two_quads(values_, 2 * pair));
      load_transposed(second, two_quads(values_, 2 * pair + 1));
    }
  }
  /// The column of a step that this lane has first, and how far behind it the second one is.
  static constexpr int SECOND_COLUMN = C::FP8 ? 1 : 8;
  __device__ static int value_column(int step) {
    return step * 16 + lane_of_warp() / 4 * (C::FP8 ? 2 : 1);
  }

  /// Of keys lane / 4 and lane / 4 + 8.
  __device__ float key_scale(int half) const {
    return scale(half);
  }
  __device__ float value_scale(int half) const {
    return scale(2 + half);
  }

 private:
  /// Where a key's quad 0 or 1 lies.
  __device__ static unsigned quad_of(int key, int quad) {
    return key * 128 + (quad ^ key % 8) * 16;
  }
  /// The same of quad 2 i + 0 or 1.
  __device__ static unsigned two_quads(unsigned first, int i) {
    return (first ^ i % 4 * 32) + i / 4 * C::PART_BYTES;
  }
  __device__ float scale(int eight) const {
    return reinterpret_cast<const float*>(stage_ + 2 * C::TILE_BYTES)[lane_of_warp() / 4 + 8 * eight];
  }
  const std::uint8_t* stage_;
  unsigned keys_, values_;
};

/// A warp's queries, and what it has summed for them. A lane has of tile t rows 8 t + 2 (lane % 4) and the
/// next.
template <typename C>
struct LoneSums {
  std::uint32_t queries[C::TILES][C::STEPS][2];  ///< row 8 t + lane / 4
  float query_scale[C::TILES][2];                ///< of codes: what their products are multiplied by
  float values[C::TILES][C::STEPS][4];  ///< by columns LoneTile::value_column() of both rows, then the second
  /// What scores are measured from, to the base of two: at most kSlack below the highest one.
  float maximum[C::TILES][2];
  float total[C::TILES][2];  ///< of weights: this lane's keys
  float unit;                ///< of E4M3: the largest scale of a value so far, in which `values` are

  /// Lower than any score, and still so much higher than that of a key which nobody sees that the latter has
  /// no weight.
  static constexpr float kNone = kLowest / 3;
  static constexpr float kSlack = 4.0f;
  /// What weights in units are multiplied by, so that they use fp16 up to 2^15.
  static constexpr float kWeightScale = 0x1p11f;

  __device__ void begin(const Cached& args, const TileRows& tile) {
    const auto* qkv = static_cast<const __nv_bfloat16*>(args.qkv);
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      const int row = 8 * t + lane_of_warp() / 4;
      const bool here = row < tile.rows;
      const __nv_bfloat16* from = qkv + tile.token(0) * args.qkv_ld +
                                  (here ? static_cast<std::int64_t>(tile.head(row)) * args.head_dim : 0);
#pragma unroll
      for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = LoneTile<C>::query_column(step, i);
          const bool inside = here && column < args.head_dim;
          queries[t][step][i] = inside ? *reinterpret_cast<const std::uint32_t*>(from + column) : 0;
        }
      }
      if constexpr (C::FP8) make_fp16(t);
    }
    clear();
  }
  __device__ void clear() {
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
      for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
        for (int e = 0; e < 4; ++e) values[t][step][e] = 0.0f;
      }
      maximum[t][0] = maximum[t][1] = kNone;
      total[t][0] = total[t][1] = 0.0f;
    }
    unit = 0x1p-126f;
  }
  /// Multiplies the values of tile `t` by a factor for each row.
  __device__ void scale_values(int t, const float (&factor)[2]) {
#pragma unroll
    for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[t][step][e] *= factor[e % 2];
    }
  }

 private:
  /// Makes fp16 of the queries of tile `t`, their largest one between 2^13 and 2^14.
  __device__ void make_fp16(int t) {
    unsigned most = 0;
#pragma unroll
    for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t pair = queries[t][step][i];
        most = max(most, max(pair & 0x7FFFu, pair >> 16 & 0x7FFFu));
      }
    }
#pragma unroll
    for (int lane = 1; lane < 4; lane *= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, lane));
    // The exponent of bf16, which is that of fp32. What is not finite stays so, and nothing becomes so.
    const int exponent = most == 0 ? 0 : min(max(static_cast<int>(most >> 7) - 127 - 13, -113), 113);
    const float scale = power_of_two(-exponent), back = power_of_two(exponent);
#pragma unroll
    for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t pair = queries[t][step][i];
        queries[t][step][i] =
            fp16_pair(__uint_as_float(pair << 16) * scale, __uint_as_float(pair & 0xFFFF0000u) * scale);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      query_scale[t][i] = __shfl_sync(0xFFFFFFFFu, back, lane_of_warp() % 4 * 8 + i * 4);
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

/// Products of a tile of keys and all queries: keys lane / 4 and lane / 4 + 8 by rows 2 (lane % 4) and the
/// next.
template <typename C>
__device__ void multiply_keys(float (&products)[C::TILES][4], const LoneSums<C>& sums,
                              const LoneTile<C>& tile) {
  float more[C::TILES][4];  // two sums, which do not wait for each other
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[t][e] = more[t][e] = 0.0f;
  }
#pragma unroll
  for (int pair = 0; pair < C::STEPS / 2; ++pair) {
    std::uint32_t first[4], second[4];
    tile.read_keys(first, second, pair);
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      const auto& query = sums.queries[t];
      multiply_add<C::FP8>(products[t], first, query[2 * pair][0], query[2 * pair][1]);
      multiply_add<C::FP8>(more[t], second, query[2 * pair + 1][0], query[2 * pair + 1][1]);
    }
  }
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[t][e] += more[t][e];
  }
}

/// Scores of the products of tile `t`, to the base of two. `seen`: keys lane / 4 and lane / 4 + 8.
template <typename C>
__device__ void score(float (&scores)[4], const LoneSums<C>& sums, int t, const float (&products)[4],
                      const LoneTile<C>& tile, const ScoreRule& rule, const bool (&seen)[2]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    scores[e] = products[e];
    if constexpr (C::FP8) scores[e] *= tile.key_scale(e / 2) * sums.query_scale[t][e % 2];
  }
  if (rule.soft_cap <= 0.0f) {
    const float scale = rule.scale * kLog2E;
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[e] *= scale;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float slope;
      scores[e] = rule.score(scores[e], slope) * kLog2E;
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) scores[e] = seen[e / 2] ? scores[e] : kLowest;
}

/// A number for each tile of keys, and of it for keys lane / 4 and lane / 4 + 8.
template <typename C>
using ForKeys = float[C::TILES_OF_KEYS][2];

/// Makes weights of the scores of tile `t`, and puts them where the values' products want them: of row lane /
/// 4 those of keys 2 (lane % 4) and the next, and of both eight further on. `value_scales`: of E4M3, what
/// take_unit() gave.
template <typename C>
__device__ void weigh(std::uint32_t (&weights)[C::TILES_OF_KEYS][2], LoneSums<C>& sums, int t,
                      const float (&scores)[C::TILES_OF_KEYS][4], const ForKeys<C>& value_scales) {
  float highest[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    highest[i] = fmaxf(scores[0][i], scores[0][2 + i]);
#pragma unroll
    for (int k = 1; k < C::TILES_OF_KEYS; ++k)
      highest[i] = fmaxf(highest[i], fmaxf(scores[k][i], scores[k][2 + i]));
    highest[i] = highest_over_keys(highest[i]);
  }
  // Mostly none is much higher than those before.
  if (__any_sync(0xFFFFFFFFu, highest[0] > sums.maximum[t][0] + sums.kSlack ||
                                  highest[1] > sums.maximum[t][1] + sums.kSlack)) {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      highest[i] = fmaxf(sums.maximum[t][i], highest[i]);
      factor[i] = power_of_two_of(sums.maximum[t][i] - highest[i]);
      sums.maximum[t][i] = highest[i];
      sums.total[t][i] *= factor[i];
    }
    sums.scale_values(t, factor);
  }
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float exact[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) exact[i] = power_of_two_of(scores[k][2 * half + i] - sums.maximum[t][i]);
      if constexpr (C::FP8) {
        sums.total[t][0] += exact[0];
        sums.total[t][1] += exact[1];
        const float scale = value_scales[k][half];
        weights[k][half] = transposed(fp16_pair(exact[0] * scale, exact[1] * scale));
      } else {
        const std::uint32_t pair = bf16_pair(exact[0], exact[1]);
        sums.total[t][0] += __uint_as_float(pair << 16);
        sums.total[t][1] += __uint_as_float(pair & 0xFFFF0000u);
        weights[k][half] = transposed(pair);
      }
    }
  }
}

/// Sees to it that sums.unit is as large as the scales of all values of a stage, and gives what this lane's
/// weights are multiplied by.
template <typename C>
__device__ void take_unit(ForKeys<C>& value_scales, LoneSums<C>& sums, const std::uint8_t* stage) {
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      value_scales[k][half] = LoneTile<C>(stage + k * C::ROOM).value_scale(half);
      largest = fmaxf(largest, value_scales[k][half]);
    }
  }
  largest = highest_over_keys(largest);
  if (largest > sums.unit) {  // the same in all lanes
    const float less = sums.unit * inverse_of_power(largest);
    const float factor[2] = {less, less};
    sums.unit = largest;
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) sums.scale_values(t, factor);
  }
  const float inverse = inverse_of_power(sums.unit);
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      value_scales[k][half] = value_scales[k][half] * inverse * sums.kWeightScale;
  }
}

/// Adds the values of tile `k` of keys by their weights to the sums of all tiles.
template <typename C>
__device__ void add_values(LoneSums<C>& sums, const std::uint32_t (&weights)[C::TILES][C::TILES_OF_KEYS][2],
                           const LoneTile<C>& tile, int k) {
#pragma unroll
  for (int pair = 0; pair < C::STEPS / 2; ++pair) {
    std::uint32_t first[4], second[4];
    tile.read_values(first, second, pair);
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      multiply_add<C::FP8>(sums.values[t][2 * pair], first, weights[t][k][0], weights[t][k][1]);
      multiply_add<C::FP8>(sums.values[t][2 * pair + 1], second, weights[t][k][0], weights[t][k][1]);
    }
  }
}

/// Adds the C::KEYS keys from `begin` on, which a stage has, to the sums.
template <typename C>
__device__ void add_keys(LoneSums<C>& sums, const std::uint8_t* stage, int begin, const LoneKeys<C>& cache,
                         const ScoreRule& rule) {
  float scores[C::TILES][C::TILES_OF_KEYS][4];
  const auto tile_of = [&](int k) { return LoneTile<C>(stage + k * C::ROOM); };
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
    const LoneTile<C> tile = tile_of(k);
    float products[C::TILES][4];
    multiply_keys<C>(products, sums, tile);
    const int key = begin + k * C::TILE_KEYS + lane_of_warp() / 4;
    const bool seen[2] = {cache.inside(key), cache.inside(key + 8)};
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) score<C>(scores[t][k], sums, t, products[t], tile, rule, seen);
  }
  ForKeys<C> value_scales = {};
  if constexpr (C::FP8) take_unit<C>(value_scales, sums, stage);
  std::uint32_t weights[C::TILES][C::TILES_OF_KEYS][2];
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) weigh<C>(weights[t], sums, t, scores[t], value_scales);
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) add_values<C>(sums, weights, tile_of(k), k);
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
