#include "wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "octet/base/dtype.h"
#include "octet/base/error.h"

namespace octet::comm {
namespace {

// Sums go through a tile that stays in the first-level cache, so that a part is read once and `to` written
// once.
constexpr std::int64_t tile = 1024;
static_assert(tile % wire_block == 0);

std::int64_t blocks_of(std::int64_t count) {
  return (count + wire_block - 1) / wire_block;
}

// Block formats lie on the wire as one fp32 factor a block, then one byte an element.
float scale_of(const float* x, std::int64_t count, float largest_code) {
  float amax = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return amax / largest_code;
}

void encode_blocks(Wire wire, const float* from, std::int64_t count, std::byte* to) {
  std::byte* codes = to + blocks_of(count) * sizeof(float);
  for (std::int64_t start = 0, block = 0; start < count; start += wire_block, ++block) {
    const std::int64_t n = std::min(wire_block, count - start);
    const float* x = from + start;
    const float scale = scale_of(x, n, wire == Wire::fp8 ? fp8_max(DType::e4m3) : 127.0f);
    std::memcpy(to + block * sizeof(float), &scale, sizeof(float));
    std::byte* code = codes + start;
    if (!(scale > 0.0f)) {  // all zero, or not finite: the factor says it all
      std::fill_n(code, n, std::byte{wire == Wire::fp8 ? std::uint8_t{0x38} : std::uint8_t{1}});
      continue;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      // A division, not a product with the inverse: the inverse of a subnormal factor is infinite.
      const float y = x[i] / scale;
      if (wire == Wire::fp8) {
        code[i] = std::byte{to_fp8(y, DType::e4m3)};
      } else {
        const float rounded = std::nearbyintf(std::clamp(y, -127.0f, 127.0f));
        code[i] = std::byte{static_cast<std::uint8_t>(static_cast<std::int8_t>(rounded))};
      }
    }
  }
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (int i = 0; i < 256; ++i) table[i] = from_fp8(static_cast<std::uint8_t>(i), DType::e4m3);
    return table;
  }();
  return values;
}

// Elements [start, start + n) of a part; start is a multiple of the tile.
void decode(Wire wire, const void* part, std::int64_t count, std::int64_t start, std::int64_t n, float* to) {
  if (wire == Wire::bf16) {
    const auto* from = static_cast<const std::uint16_t*>(part) + start;
    for (std::int64_t i = 0; i < n; ++i) to[i] = from_bf16(from[i]);
    return;
  }
  const auto* scales = static_cast<const std::byte*>(part);
  const std::byte* codes = scales + blocks_of(count) * sizeof(float);
  for (std::int64_t at = start; at < start + n; at += wire_block) {
    float scale;
    std::memcpy(&scale, scales + at / wire_block * sizeof(float), sizeof(float));
    const std::int64_t end = std::min(at + wire_block, start + n);
    for (std::int64_t i = at; i < end; ++i) {
      const auto code = static_cast<std::uint8_t>(codes[i]);
      const float value =
          wire == Wire::fp8 ? e4m3_values()[code] : static_cast<float>(static_cast<std::int8_t>(code));
      to[i - start] = value * scale;
    }
  }
}

}  // namespace

std::size_t wire_bytes(Wire wire, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  switch (wire) {
    case Wire::f32:
      return n * sizeof(float);
    case Wire::bf16:
      return n * sizeof(std::uint16_t);
    default:
      return n + static_cast<std::size_t>(blocks_of(count)) * sizeof(float);
  }
}

void encode(Wire wire, const float* from, std::int64_t count, void* to) {
  check(wire != Wire::f32, "an f32 wire is not encoded");
  if (wire == Wire::bf16) {
    auto* out = static_cast<std::uint16_t*>(to);
    for (std::int64_t i = 0; i < count; ++i) out[i] = to_bf16(from[i]);
  } else {
    encode_blocks(wire, from, count, static_cast<std::byte*>(to));
  }
}

void sum_parts(const SumArgs& args) {
  std::array<float, tile> sum;
  std::array<float, tile> decoded;
  for (std::int64_t start = 0; start < args.count; start += tile) {
    const std::int64_t n = std::min(tile, args.count - start);
    for (std::size_t r = 0; r < args.parts.size(); ++r) {
      const float* x = decoded.data();
      if (args.wire == Wire::f32) {
        x = static_cast<const float*>(args.parts[r]) + start;
      } else {
        decode(args.wire, args.parts[r], args.count, start, n, decoded.data());
      }
      if (r == 0) {
        std::copy_n(x, n, sum.data());
      } else {
        for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
      }
    }
    float* to = args.to + start;
    if (args.accumulate) {
      for (std::int64_t i = 0; i < n; ++i) to[i] += sum[i];
    } else {
      std::copy_n(sum.data(), n, to);
    }
  }
}

}  // namespace octet::comm
