#include "wire.h"

#include <algorithm>
#include <array>
#include <bit>
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

// Block formats lie on the wire as one fp32 factor a block, then one byte an element. The loops below have no
// branches, so that compilers vectorise them: encoding runs beside the computation it must not hold up.
float scale_of(const float* x, std::int64_t count, float largest_code) {
  constexpr std::int32_t infinity = 0x7F800000;
  std::int32_t amax = 0;  // magnitudes order like their bits, and what is not finite is above all others
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF;
    amax = magnitude > amax ? magnitude : amax;
  }
  if (amax >= infinity) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(amax) / largest_code;
}

// The same codes as to_fp8(y, DType::e4m3), for finite y.
std::uint8_t e4m3_code(float y) {
  const auto bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  magnitude = magnitude < 448.0f ? magnitude : 448.0f;
  const auto m = std::bit_cast<std::uint32_t>(magnitude);
  // Round to three bits of mantissa and move the exponent's bias from 127 to 7 ...
  const std::uint32_t normal = ((m + 0x7FFFFu + ((m >> 20) & 1u)) >> 20) - (120u << 3);
  // ... or, below 2^-6, count steps of 2^-9: the unit in the last place of 2^14.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(magnitude + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  return static_cast<std::uint8_t>(sign | (magnitude < 0x1p-6f ? subnormal : normal));
}

// Round to nearest even by the unit in the last place of 1.5 * 2^23; |y| is at most 127 and a little.
std::uint8_t int8_code(float y) {
  constexpr float shift = 0x1.8p23f;
  const auto rounded = std::bit_cast<std::int32_t>(y + shift) - std::bit_cast<std::int32_t>(shift);
  const std::int32_t clamped = rounded < -127 ? -127 : rounded > 127 ? 127 : rounded;
  return static_cast<std::uint8_t>(clamped);
}

// Where the factors and the codes of a part lie, or of what is behind its first elements.
struct Blocks {
  std::byte* scales = nullptr;
  std::uint8_t* codes = nullptr;
};

void encode_blocks(Wire wire, const float* from, std::int64_t count, const Blocks& to) {
  for (std::int64_t start = 0, block = 0; start < count; start += wire_block, ++block) {
    const std::int64_t n = std::min(wire_block, count - start);
    const float* x = from + start;
    std::uint8_t* code = to.codes + start;
    const float scale = scale_of(x, n, wire == Wire::fp8 ? fp8_max(DType::e4m3) : 127.0f);
    std::memcpy(to.scales + block * sizeof(float), &scale, sizeof(float));
    // A division, not a product with the inverse: the inverse of a subnormal factor is infinite.
    if (!(scale > 0.0f)) {  // all zero, or not finite: the factor says it all, times 1
      std::fill_n(code, n, wire == Wire::fp8 ? std::uint8_t{0x38} : std::uint8_t{1});
    } else if (wire == Wire::fp8) {
      for (std::int64_t i = 0; i < n; ++i) code[i] = e4m3_code(x[i] / scale);
    } else {
      for (std::int64_t i = 0; i < n; ++i) code[i] = int8_code(x[i] / scale);
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
  encode_values(wire, DType::f32, from, count, to);
}

void encode_values(Wire wire, DType dtype, const void* from, std::int64_t count, void* to) {
  check(wire != Wire::f32, "an f32 wire is not encoded");
  check(dtype == DType::f32 || dtype == DType::bf16, "values that are encoded are f32 or bf16");
  auto* bytes = static_cast<std::byte*>(to);
  auto* codes = reinterpret_cast<std::uint8_t*>(bytes + blocks_of(count) * sizeof(float));
  std::array<float, tile> converted;
  for (std::int64_t start = 0; start < count; start += tile) {
    const std::int64_t n = std::min(tile, count - start);
    const float* x = converted.data();
    if (dtype == DType::f32) {
      x = static_cast<const float*>(from) + start;
    } else {
      const auto* values = static_cast<const std::uint16_t*>(from) + start;
      for (std::int64_t i = 0; i < n; ++i) converted[i] = from_bf16(values[i]);
    }
    if (wire == Wire::bf16) {
      auto* out = static_cast<std::uint16_t*>(to) + start;
      for (std::int64_t i = 0; i < n; ++i) out[i] = to_bf16(x[i]);
    } else {
      encode_blocks(wire, x, n, {.scales = bytes + blocks_of(start) * sizeof(float), .codes = codes + start});
    }
  }
}

void decode_values(Wire wire, const void* part, std::int64_t count, DType dtype, void* to) {
  check(wire != Wire::f32, "an f32 wire is not decoded");
  check(dtype == DType::f32 || dtype == DType::bf16, "values are decoded to f32 or bf16");
  std::array<float, tile> decoded;
  for (std::int64_t start = 0; start < count; start += tile) {
    const std::int64_t n = std::min(tile, count - start);
    if (dtype == DType::f32) {
      decode(wire, part, count, start, n, static_cast<float*>(to) + start);
      continue;
    }
    decode(wire, part, count, start, n, decoded.data());
    auto* out = static_cast<std::uint16_t*>(to) + start;
    for (std::int64_t i = 0; i < n; ++i) out[i] = to_bf16(decoded[i]);
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
    if (args.to_dtype == DType::bf16) {
      auto* to = static_cast<std::uint16_t*>(args.to) + start;
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = to_bf16(args.accumulate ? from_bf16(to[i]) + sum[i] : sum[i]);
      }
      continue;
    }
    float* to = static_cast<float*>(args.to) + start;
    if (args.accumulate) {
      for (std::int64_t i = 0; i < n; ++i) to[i] += sum[i];
    } else {
      std::copy_n(sum.data(), n, to);
    }
  }
}

}  // namespace octet::comm
