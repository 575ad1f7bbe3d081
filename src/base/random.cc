#include "octet/base/random.h"

#include <cmath>

namespace octet {

float normal(std::uint64_t seed, RandomUse use, std::uint64_t index, std::uint32_t sub) {
  const auto r = philox(seed, use, index, sub);
  // In double, so that every platform's float rounding of the result agrees to the last bit nearly always
  // and the tail reaches beyond what 24 bits would give.
  const double u = (static_cast<double>(r[0]) + 1.0) * 0x1p-32;
  const double v = static_cast<double>(r[1]) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v));
}

std::uint64_t permute(std::uint64_t i, std::uint64_t n, std::uint64_t seed, std::uint32_t round_key) {
  if (n <= 1) return 0;
  int half = 1;
  while ((std::uint64_t{1} << (2 * half)) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t x = i;
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const auto r = philox(seed, RandomUse::shuffle, right, round_key * 8u + round);
      const std::uint64_t next = left ^ (((static_cast<std::uint64_t>(r[1]) << 32) | r[0]) & mask);
      left = right;
      right = next;
    }
    x = (left << half) | right;
  } while (x >= n);
  return x;
}

}  // namespace octet
