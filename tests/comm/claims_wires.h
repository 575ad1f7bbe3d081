// Claims (see claims.h) about reductions in wire formats narrower than fp32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::comm {

/// Expects errors of at most half a unit in the last place of every part.
inline void expect_wires_to_be_close(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  constexpr double largest_input = 512;
  struct Bound {
    Wire wire;
    double relative;  ///< to the value: 2^-p for p significant bits (bf16 8, E4M3 4)
    double absolute;  ///< half a step of int8's 127 or of E4M3's subnormals, when a block holds the largest
                      ///< input
  };
  for (const Bound& bound :
       {Bound{Wire::bf16, 0x1p-8, 0}, Bound{Wire::fp8, 0x1p-4, 0x1p-10 * largest_input / 448},
        Bound{Wire::int8, 0, 0.5 / 127 * largest_input}}) {
    if (size == 1) break;  // nothing is sent
    for (const std::int64_t count : slice_sizes(size)) {
      const auto from = input_of(rank, size * count, 11);
      Values<float> to(static_cast<std::size_t>(count));
      communicator.reduce_scatter(communicator.reduce_stream(),
                                  {.from = from.data(), .to = to.data(), .count = count, .wire = bound.wire});
      communicator.reduce_stream().synchronize();
      Values<double> exact(to.size(), 0.0);
      Values<double> allowed(to.size(), 0.0);
      for (int r = 0; r < size; ++r) {
        for (std::int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double value = element_of(r, rank * count + i, 11);
          exact[at] += value;
          allowed[at] += bound.relative * std::fabs(value) + bound.absolute;
          allowed[at] += 0x1p-23 * size * largest_input;  // the fp32 sum
        }
      }
      std::int64_t wrong = 0;
      double largest = 0;
      for (std::size_t i = 0; i < to.size(); ++i) {
        wrong += std::fabs(to[i] - exact[i]) > allowed[i];
        largest = std::max(largest, std::fabs(to[i] - exact[i]));
      }
      EXPECT_EQ(wrong, 0) << "wire " << static_cast<int>(bound.wire) << ", " << count << " elements";
      if (count > 100) {
        EXPECT_GT(largest, 0.0) << "a narrow wire loses something";
      }
    }
  }
}

/// Tests the block formats bit by bit: one rank sends values and all others send zeros. The results are codes
/// of the format times the block's largest magnitude over the format's.
inline void expect_block_wires_to_be_exact(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  if (size == 1) return;
  const std::int64_t count = 128 * 70 + 5;
  // Blocks differ in magnitude, down to subnormal values. Elements differ within a block.
  const auto value_of = [&](std::int64_t owner, std::int64_t i) {
    const int exponent = static_cast<int>(i / 128 * 3) - 149 - static_cast<int>(i % 12);
    return std::ldexp(element_of(3, owner * count + i, 31), exponent);
  };
  Values<float> from(static_cast<std::size_t>(size * count));
  if (rank == 0) {
    for (std::int64_t i = 0; i < size * count; ++i) {
      from[static_cast<std::size_t>(i)] = value_of(i / count, i % count);
    }
  }
  for (const Wire wire : {Wire::fp8, Wire::int8}) {
    Values<float> to(static_cast<std::size_t>(count));
    communicator.reduce_scatter(communicator.reduce_stream(),
                                {.from = from.data(), .to = to.data(), .count = count, .wire = wire});
    communicator.reduce_stream().synchronize();
    std::int64_t wrong = 0;
    for (std::int64_t start = 0; start < count; start += 128) {
      float amax = 0;
      const std::int64_t end = std::min(start + 128, count);
      for (std::int64_t i = start; i < end; ++i) amax = std::max(amax, std::fabs(value_of(rank, i)));
      const float scale = amax / (wire == Wire::fp8 ? 448.0f : 127.0f);
      for (std::int64_t i = start; i < end; ++i) {
        float expected = 0;
        if (scale > 0) {
          const float y = value_of(rank, i) / scale;
          expected = wire == Wire::fp8 ? from_fp8(to_fp8(y, DType::e4m3), DType::e4m3)
                                       : std::clamp(std::nearbyint(y), -127.0f, 127.0f);
          expected *= scale;
        }
        wrong += to[static_cast<std::size_t>(i)] != expected;  // -0 equals 0
      }
    }
    EXPECT_EQ(wrong, 0) << "wire " << static_cast<int>(wire);
  }
}

/// An all-reduce over narrow formats gives equal bits on all ranks, and a reduction split into other slices
/// gives equal sums: rounding does not depend on the owner.
inline void expect_narrow_sums_not_to_depend_on_the_owner(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const std::int64_t count = 1024;
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    // All slices of a rank have equal values, so every owner must get equal sums.
    const auto slice = input_of(rank, count, 21);
    Values<float> from;
    for (int r = 0; r < size; ++r) from.insert(from.end(), slice.begin(), slice.end());
    Values<float> all(static_cast<std::size_t>(size * count));
    communicator.reduce_scatter(
        communicator.reduce_stream(),
        {.from = from.data(), .to = all.data() + rank * count, .count = count, .wire = wire});
    communicator.reduce_stream().synchronize();
    communicator.all_gather(communicator.gather_stream(), {.buffer = all.data(), .bytes = count * 4});
    communicator.gather_stream().synchronize();
    const Values<float> first(all.begin(), all.begin() + count);
    for (int r = 1; r < size; ++r) {
      const Values<float> other(all.begin() + r * count, all.begin() + (r + 1) * count);
      EXPECT_TRUE(same_bits(first, other)) << "owner " << r << ", wire " << static_cast<int>(wire);
    }
  }
}

/// Formats without infinities and NaNs must not clip them.
inline void expect_narrow_wires_to_show_what_is_not_finite(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  if (size == 1) return;
  const std::int64_t count = 512;
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    Values<float> from(static_cast<std::size_t>(size * count), 1.0f);
    if (rank == size - 1) {
      for (int owner = 0; owner < size; ++owner) {
        from[static_cast<std::size_t>(owner * count + 3)] = std::numeric_limits<float>::infinity();
        from[static_cast<std::size_t>(owner * count + 130)] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    Values<float> to(static_cast<std::size_t>(count));
    communicator.reduce_scatter(communicator.reduce_stream(),
                                {.from = from.data(), .to = to.data(), .count = count, .wire = wire});
    communicator.reduce_stream().synchronize();
    EXPECT_FALSE(std::isfinite(to[3]));
    EXPECT_TRUE(std::isnan(to[130]));
    for (std::size_t i = 256; i < to.size(); ++i) EXPECT_FLOAT_EQ(to[i], static_cast<float>(size));
  }
}

}  // namespace octet::comm
