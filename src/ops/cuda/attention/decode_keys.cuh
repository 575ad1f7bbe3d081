// Tile sizes of attention of single tokens (cached_decode.cuh), and its copies of keys and values. A warp
// starts its copies several steps ahead, into its own part of shared memory. So no warp waits for another.
#pragma once

#include "cuda/attention/cached.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

/// `MANY`: there are so many blocks that more blocks per multiprocessor hide latency better than deeper
/// prefetch in each block. The sums have the same bits.
template <int DIM_, int TILES_, bool FP8_, bool MANY = false>
struct DecodeCut {
  static constexpr int DIM = DIM_;
  static constexpr int TILES = TILES_;         ///< tiles of eight rows
  static constexpr bool FP8 = FP8_;            ///< the cache is in E4M3
  static constexpr int ELEMENT = FP8 ? 1 : 2;  ///< bytes of a cache element
  static constexpr int WARPS = 4;
  static constexpr int LANES = 32;
  static constexpr int THREADS = LANES * WARPS;
  static constexpr int ROWS = 8 * TILES;
  static constexpr int TILE_KEYS = 16;  ///< keys of a tensor-core step
  /// Tiles of keys per warp and step. Two tiles hide latency better, if shared memory suffices.
  static constexpr int TILES_OF_KEYS = FP8 && DIM <= 128 ? 2 : 1;
  static constexpr int KEYS = TILE_KEYS * TILES_OF_KEYS;
  static constexpr int STEPS = DIM / 16;  ///< tensor-core steps over the columns of a head
  /// Layout of a key in shared memory: parts of eight quads of 16 bytes each. Part 0 of all keys comes first,
  /// then part 1 of all keys.
  static constexpr int QUADS = DIM * ELEMENT / 16;
  static constexpr int PARTS = (QUADS + 7) / 8;
  static constexpr int PART_BYTES = TILE_KEYS * 128;
  static constexpr int TILE_BYTES = PARTS * PART_BYTES;  ///< bytes of the keys, or of the values, of a tile
  /// Bytes of the keys and values of a tile, and in E4M3 of the scales of both.
  static constexpr int ROOM = 2 * TILE_BYTES + (FP8 ? 2 * TILE_KEYS * 4 : 0);
  static constexpr int STAGE_BYTES = TILES_OF_KEYS * ROOM;
  /// Number of groups of KEYS keys that a warp prefetches.
  static constexpr int STAGES = (STAGE_BYTES > 5120 ? 2 : 4) / (MANY ? 2 : 1);
  static constexpr int WARP_BYTES = STAGES * STAGE_BYTES;
  static constexpr int RING_BYTES = WARPS * WARP_BYTES;
  /// Resident blocks per multiprocessor.
  static constexpr int BLOCKS = RING_BYTES > 80 * 1024 || TILES > 1 ? 1 : !MANY ? 2 : DIM <= 128 ? 4 : 3;
};

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % 32;
}
/// Decodes two codes in the lower half of a word to fp16.
__device__ inline std::uint32_t fp16_of_codes(std::uint32_t codes) {
  const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return static_cast<std::uint32_t>(both.x) | static_cast<std::uint32_t>(both.y) << 16;
}

/// The keys of a single token that a block reads: of one slot and KV head.
template <typename C>
class DecodeKeys {
 public:
  __device__ DecodeKeys(const Cached& args, std::int64_t slot, int kv_head, const KeyRange& range)
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

  /// Returns the cache row of the first of C::KEYS keys if they are in consecutive rows, else 0. It is called
  /// ahead of the copy, because it reads the page table.
  __device__ std::int64_t first_row(int begin) const {
    return together_ && begin < high_ ? args_.row(slot_, begin) : 0;
  }
  __device__ bool inside(int key) const { return key >= low_ && key < high_; }

  /// Starts to copy keys [begin, begin + C::KEYS) and their values to a buffer of the warp, with zeros
  /// outside of the range. `first` is the result of first_row() for these keys. The copies form one group of
  /// each thread. Called by all threads of the warp.
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
  /// Like ask(), for groups with keys outside of the range, or for the last keys.
  __device__ void ask_last(std::uint8_t* stage, int begin, std::int64_t first) const {
#pragma unroll 1
    for (int at = 0; at < C::KEYS && begin < high_; at += C::TILE_KEYS)
      ask_some(*this, stage + at / C::TILE_KEYS * C::ROOM, begin + at, first + at);
    end_copies();
  }

 private:
  /// Returns the destination of the j-th copy of this lane, for keys and values. Eight lanes copy one cache
  /// row. Each lane copies 16 bytes of each part of it.
  __device__ static std::uint8_t* row_of(std::uint8_t* stage, int j) {
    const int lane = lane_of_warp(), key = j * 4 + lane / 8;
    return stage + key * 128 + (lane % 8 ^ key % 8) * 16;
  }
  /// Starts to copy a full tile of keys in consecutive rows, with all columns.
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
  /// Starts to copy a tile with missing keys or columns. Not inlined, because it is rarely used and has much
  /// code.
  __device__ static __noinline__ void ask_some(DecodeKeys cache, std::uint8_t* stage, int begin,
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
  /// Returns the destination of the scale that this lane copies. Half of the lanes copy scales of keys.
  __device__ static std::uint8_t* scale_of(std::uint8_t* stage) {
    return stage + 2 * C::TILE_BYTES + lane_of_warp() * 4;
  }
  /// Returns the cache row of key begin + i. If the key is outside of the range, returns i.
  __device__ std::int64_t row(int begin, std::int64_t first, int i) const {
    if (!inside(begin + i)) return i;
    return together_ ? first + i : args_.row(slot_, begin + i);
  }

  const Cached& args_;
  std::int64_t slot_;
  int kv_head_;
  int low_, high_;
  bool together_;
  int first_whole_;  ///< from this key on, groups of C::KEYS keys may be copied as full tiles
  /// Source addresses of this lane relative to the first cache row: keys and values, and the scale.
  const std::uint8_t *keys_, *values_;
  const float* scales_;
  int row_bytes_;
};

/// A tile of keys and their values in shared memory, read as operands of tensor cores. All threads of the
/// warp read together.
template <typename C>
class DecodeTile {
 public:
  __device__ explicit DecodeTile(const std::uint8_t* stage)
      : stage_(stage),
        keys_(shared_address(stage) + quad_of(lane_of_warp() % 16, lane_of_warp() / 16)),
        values_(shared_address(stage) + C::TILE_BYTES +
                (C::FP8 ? quad_of(lane_of_warp() % 16, lane_of_warp() / 16)
                        : quad_of(lane_of_warp() % 8 + lane_of_warp() / 16 * 8, lane_of_warp() / 8 % 2))) {}

  /// Reads the columns of two steps from 32 * pair on, of keys lane / 4 and lane / 4 + 8, in the order of
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
  /// Returns the first of the two columns of a step that the i-th register of a query holds.
  __device__ static int query_column(int step, int i) {
    const int place = lane_of_warp() % 4;
    return step * 16 + (C::FP8 ? place * 4 + i * 2 : place * 2 + i * 8);
  }

  /// Reads the values of two steps from column 32 * pair on: columns value_column() of keys 2 (lane % 4) and
  /// the next, and of both keys plus eight.
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
  /// The first column of a step for this lane, and the distance to its second column.
  static constexpr int SECOND_COLUMN = C::FP8 ? 1 : 8;
  __device__ static int value_column(int step) {
    return step * 16 + lane_of_warp() / 4 * (C::FP8 ? 2 : 1);
  }

  /// Scales of keys, or of values, lane / 4 (half 0) and lane / 4 + 8 (half 1).
  __device__ float key_scale(int half) const {
    return scale(half);
  }
  __device__ float value_scale(int half) const {
    return scale(2 + half);
  }

 private:
  /// Returns the offset of quad 0 or 1 of a key.
  __device__ static unsigned quad_of(int key, int quad) {
    return key * 128 + (quad ^ key % 8) * 16;
  }
  /// Returns the address of quad 2 i or 2 i + 1, for the address `first` of quad 0 or 1.
  __device__ static unsigned two_quads(unsigned first, int i) {
    return (first ^ i % 4 * 32) + i / 4 * C::PART_BYTES;
  }
  __device__ float scale(int eight) const {
    return reinterpret_cast<const float*>(stage_ + 2 * C::TILE_BYTES)[lane_of_warp() / 4 + 8 * eight];
  }
  const std::uint8_t* stage_;
  unsigned keys_, values_;
};

}  // namespace octet::ops::cuda
