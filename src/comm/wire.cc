#include "wire.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "wire_rows.h"

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
    const float largest = rows::largest(x, n);
    const float scale = !std::isfinite(largest)
                            ? std::numeric_limits<float>::quiet_NaN()
                            : largest / (wire == Wire::fp8 ? fp8_max(DType::e4m3) : 127.0f);
    std::memcpy(to.scales + block * sizeof(float), &scale, sizeof(float));
    if (!(scale > 0.0f)) {  // all zero, or not finite: the factor says it all, times 1
      std::fill_n(code, n, wire == Wire::fp8 ? std::uint8_t{0x38} : std::uint8_t{1});
    } else if (wire == Wire::fp8) {
      rows::encode_e4m3(x, scale, n, code);
    } else {
      rows::encode_int8(x, scale, n, code);
    }
  }
}

// Elements [start, start + n) of a part; start is a multiple of the tile.
void decode(Wire wire, const void* part, std::int64_t count, std::int64_t start, std::int64_t n, float* to) {
  if (wire == Wire::bf16) {
    rows::from_bf16(static_cast<const std::uint16_t*>(part) + start, n, to);
    return;
  }
  const auto* scales = static_cast<const std::byte*>(part);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(scales + blocks_of(count) * sizeof(float));
  for (std::int64_t at = start; at < start + n; at += wire_block) {
    float scale;
    std::memcpy(&scale, scales + at / wire_block * sizeof(float), sizeof(float));
    const std::int64_t m = std::min(wire_block, start + n - at);
    (wire == Wire::fp8 ? rows::decode_e4m3 : rows::decode_int8)(codes + at, scale, m, to + (at - start));
  }
}

// What encoding lost of `x`, which is elements [start, start + n). A block that is not finite arrives as NaN
// and the step is skipped; nothing of it may be left.
void keep_loss(const EncodeArgs& args, const float* x, std::int64_t start, std::int64_t n) {
  std::array<float, tile> loss, before;
  decode(args.wire, args.to, args.count, start, n, loss.data());
  rows::lost(x, loss.data(), n, loss.data());
  if (!args.adds_residual) {
    rows::from_bf16(args.residual + start, n, before.data());
    rows::add(loss.data(), before.data(), n, loss.data());
  }
  rows::to_bf16(loss.data(), n, args.residual + start);
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
  encode_values({.wire = wire, .from = from, .count = count, .to = to});
}

void encode_values(const EncodeArgs& args) {
  const Wire wire = args.wire;
  check(wire != Wire::f32, "an f32 wire is not encoded");
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "values that are encoded are f32 or bf16");
  auto* bytes = static_cast<std::byte*>(args.to);
  auto* codes = reinterpret_cast<std::uint8_t*>(bytes + blocks_of(args.count) * sizeof(float));
  std::array<float, tile> converted, before;
  for (std::int64_t start = 0; start < args.count; start += tile) {
    const std::int64_t n = std::min(tile, args.count - start);
    const float* x = converted.data();
    if (args.dtype == DType::f32) {
      x = static_cast<const float*>(args.from) + start;
    } else {
      rows::from_bf16(static_cast<const std::uint16_t*>(args.from) + start, n, converted.data());
    }
    if (args.residual != nullptr && args.adds_residual) {
      rows::from_bf16(args.residual + start, n, before.data());
      rows::add(x, before.data(), n, converted.data());
      x = converted.data();
    }
    if (wire == Wire::bf16) {
      rows::to_bf16(x, n, static_cast<std::uint16_t*>(args.to) + start);
    } else {
      encode_blocks(wire, x, n, {.scales = bytes + blocks_of(start) * sizeof(float), .codes = codes + start});
    }
    if (args.residual != nullptr) keep_loss(args, x, start, n);
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
    rows::to_bf16(decoded.data(), n, static_cast<std::uint16_t*>(to) + start);
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
        rows::add(sum.data(), x, n, sum.data());
      }
    }
    if (args.to_dtype == DType::bf16) {
      auto* to = static_cast<std::uint16_t*>(args.to) + start;
      if (args.accumulate) {
        rows::from_bf16(to, n, decoded.data());
        rows::add(decoded.data(), sum.data(), n, sum.data());
      }
      rows::to_bf16(sum.data(), n, to);
      continue;
    }
    float* to = static_cast<float*>(args.to) + start;
    if (args.accumulate) {
      rows::add(to, sum.data(), n, to);
    } else {
      std::copy_n(sum.data(), n, to);
    }
  }
}

}  // namespace octet::comm
