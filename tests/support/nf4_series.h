// Tensors in NF4 at equal distances, for tests of the CPU and of GPUs.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "octet/ops/nf4.h"

namespace octet::ops {

/// Tensors of [rows, cols] with codes and scales in one buffer: codes, scales, codes of scales, scales of
/// scales, mean.
struct StoredNf4 {
  std::int64_t rows, cols, scales, codes_of_scales, nested, mean, bytes;
  std::vector<std::uint8_t> data;

  StoredNf4(std::int64_t tensors, std::int64_t r, std::int64_t c) : rows(r), cols(c) {
    std::int64_t at = 0;
    const auto take = [&](std::int64_t count) { return std::exchange(at, (at + count + 15) / 16 * 16); };
    const std::int64_t blocks = nf4_blocks(r * c);
    take(nf4_code_bytes(r * c));
    scales = take(4 * blocks), codes_of_scales = take(blocks);
    nested = take(4 * nf4_scale_blocks(r * c)), mean = take(4), bytes = at;
    for (std::int64_t i = 0; i < tensors * bytes; ++i)
      data.push_back(static_cast<std::uint8_t>(i * i * 31 + i / 7));
    for (std::int64_t t = 0; t < tensors; ++t) {
      for (std::int64_t b = 0; b < blocks; ++b)
        put(t * bytes + scales + 4 * b, 0.5f + 0.25f * static_cast<float>((b + t) % 9));
      for (std::int64_t b = 0; b < nf4_scale_blocks(r * c); ++b)
        put(t * bytes + nested + 4 * b, 0.125f * static_cast<float>(1 + (b + 2 * t) % 5));
      put(t * bytes + mean, 1.0f + static_cast<float>(t));
    }
  }
  void put(std::int64_t at, float value) { std::memcpy(data.data() + at, &value, sizeof value); }
  static const float* floats(const std::uint8_t* at) { return reinterpret_cast<const float*>(at); }
  Nf4Scales plain(const std::uint8_t* base) const { return {.plain = floats(base + scales)}; }
  Nf4Scales twice(const std::uint8_t* base) const {
    return {.codes = base + codes_of_scales, .nested = floats(base + nested), .mean = floats(base + mean)};
  }
};

}  // namespace octet::ops
