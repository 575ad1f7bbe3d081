// Values for tests that encode and add: consecutive blocks of all kinds.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/ops/wire.h"
#include "ops/tensor.h"

namespace octet::ops {

/// Returns random numbers. The blocks cycle through eight kinds: some are all zero, subnormal, near the
/// largest float, have a factor that is subnormal or nearly so, or contain an infinity or NaNs.
inline std::vector<float> awkward_floats(std::int64_t count, std::uint64_t seed) {
  std::vector<float> x = random_floats(count, seed);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t block = i / static_cast<std::size_t>(kWireBlock), at = i % 97;
    switch ((block + seed) % 8) {
      case 1:
        x[i] = at % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 2:
        x[i] = std::ldexp(x[i], -140);
        break;
      case 3:
        x[i] = std::ldexp(x[i], 124);
        break;
      case 4:
        x[i] = std::ldexp(x[i], -static_cast<int>(60 + block % 70));
        break;
      case 5:
        if (at == 11) x[i] = seed % 2 == 0 ? INFINITY : -INFINITY;
        if (at == 12 && seed % 3 == 0) x[i] = std::bit_cast<float>(0x7FA12345u);
        if (at == 13 && seed % 3 == 1) x[i] = std::bit_cast<float>(0xFFC00077u);
        break;
      default:  // magnitudes that differ by up to 2^12, and zeros of both signs
        x[i] = at == 5 ? -0.0f : std::ldexp(x[i], static_cast<int>(i % 13) - static_cast<int>(block % 5));
    }
  }
  return x;
}
/// Like awkward_floats, in bf16. NaNs keep their signs and fractions.
inline std::vector<std::uint16_t> awkward_halves(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> x;
  for (const float value : awkward_floats(count, seed)) x.push_back(to_bf16(value));
  return x;
}
/// Returns residuals of earlier steps: small compared with the values, sometimes NaN or infinite.
inline std::vector<std::uint16_t> awkward_residual(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> x;
  for (const float value : random_floats(count, seed, 0.01)) x.push_back(to_bf16(value));
  for (std::size_t i = 700; i < x.size(); i += 2311) x[i] = static_cast<std::uint16_t>(0xFFC3u);
  for (std::size_t i = 900; i < x.size(); i += 2777) x[i] = 0x7F80u;
  return x;
}

/// Returns `count` encoded values; the f32 encoding is the values themselves.
inline std::vector<std::uint8_t> travelling(Wire wire, std::int64_t count, std::uint64_t seed) {
  const std::vector<float> x = awkward_floats(count, seed);
  std::vector<std::uint8_t> bytes(wire_bytes(wire, count));
  if (wire == Wire::f32) {
    if (count > 0) std::memcpy(bytes.data(), x.data(), bytes.size());
  } else {
    encode_values({.wire = wire, .from = x.data(), .count = count, .to = bytes.data()});
  }
  return bytes;
}

/// Returns merges of a chain, ((0 + 1) + 2) + …; of pairwise added halves; and of a sum that begins at the
/// last addend.
inline std::vector<std::vector<int>> merges_of(int addends) {
  std::vector<int> chain(static_cast<std::size_t>(addends), 1), pairs, late(chain.size(), 0);
  chain.front() = 0;
  int height = 0;
  for (int i = 1; i <= addends; ++i) {
    int merges = 0;
    for (int n = i; n % 2 == 0; n /= 2) ++merges;
    height += 1 - merges;
    pairs.push_back(merges);
  }
  pairs.back() += height - 1;
  late.back() = addends - 1;
  return {chain, pairs, late};
}

inline constexpr Wire kNarrowWires[] = {Wire::bf16, Wire::fp8, Wire::int8};
inline constexpr Wire kWires[] = {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8};
inline const char* name_of(Wire wire) {
  constexpr const char* names[] = {"f32", "bf16", "fp8", "int8"};
  return names[static_cast<int>(wire)];
}

}  // namespace octet::ops
