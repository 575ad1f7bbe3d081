// Sums of a warp for attention of a single token (cached_decode.cuh). A tensor core multiplies 16 keys by 8
// query heads, so the few rows of a KV head fill the narrow side.
//
// Codes of an E4M3 cache are converted to fp16, which is exact. Queries are also converted to fp16. A power
// of two per row scales the largest element to near the largest fp16 value, so the rounding error is below
// 2^-38 of it. Weights are multiplied by the scales of their values, which are powers of two, and divided by
// the largest scale so far. Then they are converted to fp16.
#pragma once

#include "cuda/attention/decode_keys.cuh"

namespace octet::ops::cuda {

/// Rounds two values to bf16, with the first in the lower half.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return packed(both.x, both.y);
}
/// Rounds two values to fp16, with the first in the lower half.
__device__ inline std::uint32_t fp16_pair(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
/// Returns 2^x, or zero if the result is below the smallest normal number.
__device__ inline float power_of_two_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Returns the inverse of a power of two between 2^-126 and 2^126.
__device__ inline float inverse_of_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}

/// The queries of a warp and their sums. For tile t, a lane holds rows 8 t + 2 (lane % 4) and the next.
template <typename C>
struct DecodeSums {
  std::uint32_t queries[C::TILES][C::STEPS][2];  ///< row 8 t + lane / 4
  float query_scale[C::TILES][2];                ///< factors for products with the codes
  float values[C::TILES][C::STEPS][4];  ///< value_column() of both rows, then the second column of both
  /// Reference of the exponentials, base 2: at most kSlack below the highest score.
  float maximum[C::TILES][2];
  float total[C::TILES][2];  ///< sums of weights over the keys of this lane
  float unit;                ///< for E4M3: the largest scale of a value so far, and the unit of `values`

  /// Lower than any score, but so far above the score of an unseen key that an unseen key has no weight.
  static constexpr float kNone = kLowest / 3;
  static constexpr float kSlack = 4.0f;
  /// Factor of weights in units, so that they use the fp16 range up to 2^15.
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
          const int column = DecodeTile<C>::query_column(step, i);
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
  /// Multiplies the values of tile `t` by one factor per row.
  __device__ void scale_values(int t, const float (&factor)[2]) {
#pragma unroll
    for (int step = 0; step < C::STEPS; ++step) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[t][step][e] *= factor[e % 2];
    }
  }

 private:
  /// Converts the queries of tile `t` to fp16, with the largest between 2^13 and 2^14.
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
    // The exponent of bf16 equals that of fp32. Non-finite values stay non-finite, and finite values stay
    // finite.
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

/// Maximum, or sum, over the eight lanes with the same rows.
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

/// Multiplies a tile of keys by all queries: keys lane / 4 and lane / 4 + 8, rows 2 (lane % 4) and the next.
template <typename C>
__device__ void multiply_keys(float (&gemms)[C::TILES][4], const DecodeSums<C>& sums,
                              const DecodeTile<C>& tile) {
  float more[C::TILES][4];  // two independent sums, for instruction-level parallelism
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) gemms[t][e] = more[t][e] = 0.0f;
  }
#pragma unroll
  for (int pair = 0; pair < C::STEPS / 2; ++pair) {
    std::uint32_t first[4], second[4];
    tile.read_keys(first, second, pair);
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) {
      const auto& query = sums.queries[t];
      multiply_add<C::FP8>(gemms[t], first, query[2 * pair][0], query[2 * pair][1]);
      multiply_add<C::FP8>(more[t], second, query[2 * pair + 1][0], query[2 * pair + 1][1]);
    }
  }
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) gemms[t][e] += more[t][e];
  }
}

/// Converts the products of tile `t` to base-2 scores. `seen`: for keys lane / 4 and lane / 4 + 8.
template <typename C>
__device__ void score(float (&scores)[4], const DecodeSums<C>& sums, int t, const float (&gemms)[4],
                      const DecodeTile<C>& tile, const ScoreRule& rule, const bool (&seen)[2]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    scores[e] = gemms[e];
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

/// A number for each tile of keys and each of the keys lane / 4 and lane / 4 + 8.
template <typename C>
using ForKeys = float[C::TILES_OF_KEYS][2];

/// Converts the scores of tile `t` to weights, in the operand layout of the value products. A lane gets keys
/// 2 (lane % 4) and the next, and both keys plus eight, of row lane / 4. `value_scales`: for E4M3, the result
/// of take_unit().
template <typename C>
__device__ void weigh(std::uint32_t (&weights)[C::TILES_OF_KEYS][2], DecodeSums<C>& sums, int t,
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
  // Scores rarely exceed the earlier maximum by much.
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

/// Raises sums.unit to the largest scale of the values of a buffer. Returns the factors for the weights of
/// this lane in `value_scales`.
template <typename C>
__device__ void take_unit(ForKeys<C>& value_scales, DecodeSums<C>& sums, const std::uint8_t* stage) {
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      value_scales[k][half] = DecodeTile<C>(stage + k * C::ROOM).value_scale(half);
      largest = fmaxf(largest, value_scales[k][half]);
    }
  }
  largest = highest_over_keys(largest);
  if (largest > sums.unit) {  // uniform over all lanes
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

/// Adds the weighted values of tile `k` of keys to the sums of all tiles.
template <typename C>
__device__ void add_values(DecodeSums<C>& sums, const std::uint32_t (&weights)[C::TILES][C::TILES_OF_KEYS][2],
                           const DecodeTile<C>& tile, int k) {
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

/// Adds the C::KEYS keys from `begin` on, which are in buffer `stage`, to the sums.
template <typename C>
__device__ void add_keys(DecodeSums<C>& sums, const std::uint8_t* stage, int begin,
                         const DecodeKeys<C>& cache, const ScoreRule& rule) {
  float scores[C::TILES][C::TILES_OF_KEYS][4];
  const auto tile_of = [&](int k) { return DecodeTile<C>(stage + k * C::ROOM); };
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) {
    const DecodeTile<C> tile = tile_of(k);
    float gemms[C::TILES][4];
    multiply_keys<C>(gemms, sums, tile);
    const int key = begin + k * C::TILE_KEYS + lane_of_warp() / 4;
    const bool seen[2] = {cache.inside(key), cache.inside(key + 8)};
#pragma unroll
    for (int t = 0; t < C::TILES; ++t) score<C>(scores[t][k], sums, t, gemms[t], tile, rule, seen);
  }
  ForKeys<C> value_scales = {};
  if constexpr (C::FP8) take_unit<C>(value_scales, sums, stage);
  std::uint32_t weights[C::TILES][C::TILES_OF_KEYS][2];
#pragma unroll
  for (int t = 0; t < C::TILES; ++t) weigh<C>(weights[t], sums, t, scores[t], value_scales);
#pragma unroll
  for (int k = 0; k < C::TILES_OF_KEYS; ++k) add_values<C>(sums, weights, tile_of(k), k);
}

}  // namespace octet::ops::cuda
