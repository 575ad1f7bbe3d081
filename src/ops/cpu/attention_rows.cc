#include "cpu/attention_rows.h"

#include <cmath>
#include <cstring>

#include "cpu/simd.h"
#include "cpu/tile_gemm.h"

namespace octet::ops::cpu {

namespace {

/// Below every score. Finite, so that differences of two such values are finite.
constexpr float lowest = -3.0e38f;

/// Replaces the scores of queries [lane, lane + lanes) by exp(scores - maximum), zero if masked, and updates
/// the running state.
template <std::int64_t lanes>
OCTET_SIMD void softmax_block(const ScoreBlock& at, std::int64_t lane, float* scores, const Running& state) {
  float maximum[lanes];
  float sum[lanes];
  const bool masked = at.masked();
  const std::int64_t window = at.window > 0 ? at.window : INT32_MAX;
  // Query q sees key k of the block when 0 <= distance + q - k < window.
  const auto distance =
      static_cast<std::int32_t>(std::min<std::int64_t>(at.query - at.key, INT32_MAX / 2) + lane);
  const auto reach = static_cast<std::int32_t>(std::min<std::int64_t>(window, INT32_MAX));
  const auto first_lane = [&](std::int64_t k) {
    return static_cast<std::int32_t>(std::max<std::int64_t>(0, first_query(at, k) - lane));
  };
  for (std::int64_t q = 0; q < lanes; ++q) maximum[q] = state.maximum[lane + q];
  for (std::int64_t k = 0; k < block; ++k) {
    float* row = scores + k * block + lane;
    if (!masked) {
      for (std::int64_t q = 0; q < lanes; ++q) maximum[q] = row[q] > maximum[q] ? row[q] : maximum[q];
      continue;
    }
    const auto key = static_cast<std::int32_t>(k);
    for (std::int32_t q = first_lane(k); q < lanes; ++q) {
      const std::int32_t back = distance + q - key;
      const float score = (back >= 0) & (back < reach) ? row[q] : lowest;
      maximum[q] = score > maximum[q] ? score : maximum[q];
    }
  }
  for (std::int64_t q = 0; q < lanes; ++q) {
    const float factor = simd::exp(state.maximum[lane + q] - maximum[q]);
    state.factor[lane + q] = factor;
    sum[q] = state.sum[lane + q] * factor;
    state.maximum[lane + q] = maximum[q];
  }
  for (std::int64_t k = 0; k < block; ++k) {
    float* row = scores + k * block + lane;
    if (!masked) {
      for (std::int64_t q = 0; q < lanes; ++q) {
        const float p = simd::exp(row[q] - maximum[q]);
        row[q] = p;
        sum[q] += p;
      }
      continue;
    }
    const auto key = static_cast<std::int32_t>(k);
    for (std::int32_t q = first_lane(k); q < lanes; ++q) {
      const std::int32_t back = distance + q - key;
      const float e = simd::exp(row[q] - maximum[q]);
      const float p = (back >= 0) & (back < reach) ? e : 0.0f;
      row[q] = p;
      sum[q] += p;
    }
  }
  for (std::int64_t q = 0; q < lanes; ++q) state.sum[lane + q] = sum[q];
}

OCTET_SIMD void scale_row(float* row, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] *= factor;
}

/// Computes the sums of queries [lane, lane + lanes): initialises them and iterates over the tiles of keys.
/// `make_scores` and `add_values` are the two GEMMs of a tile.
template <std::int64_t lanes, typename MakeScores, typename AddValues>
void attend(const QueryBlock& b, std::int64_t lane, const MakeScores& make_scores,
            const AddValues& add_values) {
  std::memset(b.out + lane * b.padded, 0, static_cast<std::size_t>(lanes * b.padded) * sizeof(float));
  for (std::int64_t q = lane; q < lane + lanes; ++q) {
    b.state.maximum[q] = lowest;
    b.state.sum[q] = 0.0f;
  }
  for (std::int64_t key = first_key_block(b.query, b.window); key <= b.query; key += block) {
    const ScoreBlock at{.query = b.query, .key = key, .window = b.window, .soft_cap = b.soft_cap};
    make_scores(at, b.keys + (key - b.from) * b.padded);
    softmax_block<lanes>(at, lane, b.scores, b.state);
    for (std::int64_t q = lane; q < lane + lanes; ++q) {
      if (b.state.factor[q] != 1.0f) scale_row(b.out + q * b.padded, b.state.factor[q], b.padded);
    }
    add_values(at, b.values + (key - b.from) * b.padded);
  }
}

/// Like block_scores, for queries [lane, lane + lane_group).
void lane_scores(const QueryBlock& b, const ScoreBlock& at, std::int64_t lane, const float* keys) {
  TileGemm tile{.a = keys,
                .a_row = b.padded,
                .a_col = 1,
                .b = b.queries + lane,
                .ldb = block,
                .c = b.scores + lane,
                .ldc = block,
                .m = at.key == at.query ? lane + lane_group : block,
                .n = lane_group,
                .k = b.head_dim};
  tile_gemm(tile);
  if (at.soft_cap <= 0.0f) return;
  for (std::int64_t key = 0; key < tile.m; ++key) {
    cap_scores(b.scores + key * block, lane, lane + lane_group, at.soft_cap);
  }
}

/// Like add_weighted_rows, for queries [lane, lane + lane_group).
void add_lane_values(const QueryBlock& b, const ScoreBlock& at, std::int64_t lane, const float* values) {
  TileGemm tile{.a = b.scores + lane,
                .a_row = 1,
                .a_col = block,
                .b = values,
                .ldb = b.padded,
                .c = b.out + lane * b.padded,
                .ldc = b.padded,
                .m = lane_group,
                .n = b.padded,
                .k = block,
                .accumulate = true};
  if (at.key != at.query) return tile_gemm(tile);
  tile.m = tile_rows;
  for (std::int64_t query = lane; query < lane + lane_group; query += tile_rows) {
    tile.a = b.scores + query;
    tile.c = b.out + query * b.padded;
    tile.k = query + tile_rows;
    tile_gemm(tile);
  }
}

}  // namespace

AttendScratch attend_scratch(void* memory, std::int64_t padded, std::int64_t keys) {
  AttendScratch s;
  auto* next = static_cast<float*>(memory);
  const auto take = [&next](std::int64_t count) {
    float* here = next;
    next += count;
    return here;
  };
  s.keys = take(keys * padded);
  s.values = take(keys * padded);
  s.rows = take(block * padded);
  s.queries = take(block * padded);
  s.out = take(block * padded);
  s.scores = take(block * block);
  s.state = {take(block), take(block), take(block)};
  return s;
}

void attend_rows(const QueryBlock& b) {
  attend<block>(
      b, 0,
      [&](const ScoreBlock& at, const float* keys) {
        block_scores(at, keys, b.queries, b.head_dim, b.padded, b.scores);
      },
      [&](const ScoreBlock& at, const float* values) {
        add_weighted_rows(at, b.scores, values, b.padded, b.out);
      });
}

void attend_lanes(const QueryBlock& b, std::int64_t lane) {
  attend<lane_group>(
      b, lane, [&](const ScoreBlock& at, const float* keys) { lane_scores(b, at, lane, keys); },
      [&](const ScoreBlock& at, const float* values) { add_lane_values(b, at, lane, values); });
}

}  // namespace octet::ops::cpu
