#include "cpu/wire_ranges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/simd.h"
#include "cpu/wire_rows.h"
#include "kernels.h"
#include "one_nan.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t tile = kWireTile;
static_assert(tile % kWireBlock == 0);

using Tile = std::array<float, tile>;

// Block formats are transmitted as one fp32 factor per block, then one byte per element.

// Addresses of the factors and the codes of a part or of its tail.
struct Blocks {
  std::byte* scales = nullptr;
  std::uint8_t* codes = nullptr;
};

void encode_blocks(Wire wire, const float* from, std::int64_t count, const Blocks& to) {
  for (std::int64_t start = 0, block = 0; start < count; start += kWireBlock, ++block) {
    const std::int64_t n = std::min(kWireBlock, count - start);
    const float* x = from + start;
    std::uint8_t* code = to.codes + start;
    const float largest = rows::largest(x, n);
    const float scale = !std::isfinite(largest)
                            ? std::bit_cast<float>(kNanBits)
                            : largest / (wire == Wire::fp8 ? fp8_max(DType::e4m3) : 127.0f);
    std::memcpy(to.scales + block * sizeof(float), &scale, sizeof(float));
    if (!(scale > 0.0f)) {  // all zero or not finite: the code is 1, and the factor holds the value
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
  const auto* codes =
      reinterpret_cast<const std::uint8_t*>(scales + wire_blocks(count) * std::int64_t{sizeof(float)});
  for (std::int64_t at = start; at < start + n; at += kWireBlock) {
    float scale;
    std::memcpy(&scale, scales + at / kWireBlock * std::int64_t{sizeof(float)}, sizeof(float));
    const std::int64_t m = std::min(kWireBlock, start + n - at);
    (wire == Wire::fp8 ? rows::decode_e4m3 : rows::decode_int8)(codes + at, scale, m, to + (at - start));
  }
}

// Stores the encoding error of `x`, elements [start, start + n). A block that is not finite arrives as NaN
// and the step is skipped: its error must not be stored.
void keep_loss(const EncodeArgs& args, const float* x, std::int64_t start, std::int64_t n) {
  Tile loss, before;
  decode(args.wire, args.to, args.count, start, n, loss.data());
  rows::lost(x, loss.data(), n, loss.data());
  if (!args.adds_residual) {
    rows::from_bf16(args.residual + start, n, before.data());
    rows::add(loss.data(), before.data(), n, loss.data());
  }
  rows::to_bf16(loss.data(), n, args.residual + start);
}

// Calls f(first, n) for the tiles of [begin, end).
template <typename F>
void each_tile(std::int64_t begin, std::int64_t end, F f) {
  for (std::int64_t start = begin; start < end; start += tile) f(start, std::min(tile, end - start));
}

// Runs body(begin, end) over all elements. Threads get whole tiles, so that the result does not depend on the
// threads.
template <typename Body>
void share(std::int64_t count, std::int64_t work_per_element, Body body) {
  simd::parallel_rows(
      (count + tile - 1) / tile, tile * work_per_element,
      [&](std::int64_t first, std::int64_t last) { body(first * tile, std::min(last * tile, count)); });
}

// Returns the largest number of sums on the stack.
std::size_t depth_of(std::span<const int> merges) {
  std::int64_t height = 0, most = 0;
  for (const int merged : merges) {
    most = std::max(most, ++height);
    height -= merged;
  }
  return static_cast<std::size_t>(most);
}

template <typename T, typename F>
void combine(const CombineArgs& args, std::int64_t begin, std::int64_t end, F two) {
  const auto at = [&](std::size_t part, std::int64_t i) {
    return static_cast<const T*>(args.parts[part])[i];
  };
  for (std::int64_t i = begin; i < end; ++i) {
    T result = at(0, i);
    for (std::size_t part = 1; part < args.parts.size(); ++part) result = two(result, at(part, i));
    static_cast<T*>(args.to)[i] = settled(result);
  }
}

}  // namespace

void encode_range(const EncodeArgs& args, std::int64_t begin, std::int64_t end) {
  const Wire wire = args.wire;
  auto* bytes = static_cast<std::byte*>(args.to);
  auto* codes =
      reinterpret_cast<std::uint8_t*>(bytes + wire_blocks(args.count) * std::int64_t{sizeof(float)});
  Tile converted, before;
  each_tile(begin, end, [&](std::int64_t start, std::int64_t n) {
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
      std::byte* scales = bytes + start / kWireBlock * std::int64_t{sizeof(float)};
      encode_blocks(wire, x, n, {.scales = scales, .codes = codes + start});
    }
    if (args.residual != nullptr) keep_loss(args, x, start, n);
  });
}

void decode_range(const DecodeArgs& args, std::int64_t begin, std::int64_t end) {
  Tile decoded;
  each_tile(begin, end, [&](std::int64_t start, std::int64_t n) {
    decode(args.wire, args.part, args.count, start, n, decoded.data());
    if (args.dtype == DType::f32) {
      rows::settle(decoded.data(), n, static_cast<float*>(args.to) + start);
    } else {
      rows::to_bf16(decoded.data(), n, static_cast<std::uint16_t*>(args.to) + start);
    }
  });
}

void sum_parts_range(const SumPartsArgs& args, std::int64_t begin, std::int64_t end) {
  Tile sum, decoded;
  each_tile(begin, end, [&](std::int64_t start, std::int64_t n) {
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
    } else {
      float* to = static_cast<float*>(args.to) + start;
      if (args.accumulate) rows::add(to, sum.data(), n, sum.data());
      rows::settle(sum.data(), n, to);
    }
  });
}

void sum_tree_range(const SumTreeArgs& args, std::int64_t begin, std::int64_t end) {
  std::vector<float> stack(depth_of(args.merges) * tile);
  each_tile(begin, end, [&](std::int64_t start, std::int64_t n) {
    float* above = stack.data();  // the place above the top
    for (std::size_t a = 0; a < args.addends.size(); ++a) {
      std::copy_n(args.addends[a] + start, n, above);
      above += tile;
      for (int merge = 0; merge < args.merges[a]; ++merge) {
        above -= tile;
        rows::add(above - tile, above, n, above - tile);
      }
    }
    rows::settle(stack.data(), n, args.to + start);
  });
}

void combine_range(const CombineArgs& args, std::int64_t begin, std::int64_t end) {
  switch (args.how) {
    case Combine::max_f32:
      return combine<float>(args, begin, end, [](float a, float b) {
        if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(kNanBits);
        return a < b ? b : a;
      });
    case Combine::sum_i64:
      return combine<std::int64_t>(args, begin, end, [](std::int64_t a, std::int64_t b) {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      });
    case Combine::sum_f64:
      return combine<double>(args, begin, end, [](double a, double b) { return a + b; });
  }
}

void encode_values(const EncodeArgs& args) {
  share(args.count, 4, [&](std::int64_t begin, std::int64_t end) { encode_range(args, begin, end); });
}

void decode_values(const DecodeArgs& args) {
  share(args.count, 2, [&](std::int64_t begin, std::int64_t end) { decode_range(args, begin, end); });
}

void sum_parts(const SumPartsWork& work) {
  SumPartsArgs args = work.args;
  args.parts = work.parts;
  share(args.count, static_cast<std::int64_t>(work.parts.size()),
        [&](std::int64_t begin, std::int64_t end) { sum_parts_range(args, begin, end); });
}

void sum_tree(const SumTreeWork& work) {
  SumTreeArgs args = work.args;
  args.addends = work.addends;
  args.merges = work.merges;
  share(args.count, static_cast<std::int64_t>(work.addends.size()),
        [&](std::int64_t begin, std::int64_t end) { sum_tree_range(args, begin, end); });
}

void combine_parts(const CombineWork& work) {
  CombineArgs args = work.args;
  args.parts = work.parts;
  share(args.count, static_cast<std::int64_t>(work.parts.size()),
        [&](std::int64_t begin, std::int64_t end) { combine_range(args, begin, end); });
}

}  // namespace octet::ops::cpu
