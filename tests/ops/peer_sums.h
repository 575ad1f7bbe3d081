// Sums over ranks that are streams of one process, and their expected results.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/ops/peer_sum.h"

namespace octet::ops {

/// One sum: properties of the ranks' values and of the addend.
struct PeerSumCase {
  DType dtype = DType::f32;
  std::int64_t count = 0;
  bool adds = false, in_place = false;
};

/// Returns values in bytes. Some values have very different magnitudes, so that a different order of
/// additions gives different bits.
inline std::vector<std::uint8_t> peer_values(const PeerSumCase& c, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(c.count) * size_of(c.dtype));
  for (std::int64_t i = 0; i < c.count; ++i) {
    const float x = normal(random) * static_cast<float>(1 << random() % 12);
    const auto at = bytes.data() + static_cast<std::size_t>(i) * size_of(c.dtype);
    const std::uint16_t narrow = to_bf16(x);
    c.dtype == DType::bf16 ? std::memcpy(at, &narrow, 2) : std::memcpy(at, &x, 4);
  }
  return bytes;
}

inline float peer_value(const PeerSumCase& c, const std::vector<std::uint8_t>& bytes, std::int64_t i) {
  float x = 0;
  std::uint16_t narrow = 0;
  const auto at = bytes.data() + static_cast<std::size_t>(i) * size_of(c.dtype);
  if (c.dtype == DType::f32) std::memcpy(&x, at, 4);
  if (c.dtype == DType::bf16) std::memcpy(&narrow, at, 2), x = from_bf16(narrow);
  return x;
}

/// Returns the expected sum: rank by rank in fp32, rounded, plus the addend, rounded.
inline std::vector<std::uint8_t> peer_sum_of(const PeerSumCase& c,
                                             const std::vector<std::vector<std::uint8_t>>& parts,
                                             const std::vector<std::uint8_t>& addend) {
  std::vector<std::uint8_t> sums(parts.front().size());
  const auto rounded = [&](float x) { return c.dtype == DType::bf16 ? from_bf16(to_bf16(x)) : x; };
  for (std::int64_t i = 0; i < c.count; ++i) {
    float sum = peer_value(c, parts.front(), i);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) sum += peer_value(c, parts[rank], i);
    sum = rounded(sum);
    if (c.adds) sum = rounded(peer_value(c, addend, i) + sum);
    const std::uint16_t narrow = to_bf16(sum);
    const auto at = sums.data() + static_cast<std::size_t>(i) * size_of(c.dtype);
    c.dtype == DType::bf16 ? std::memcpy(at, &narrow, 2) : std::memcpy(at, &sum, 4);
  }
  return sums;
}

}  // namespace octet::ops
