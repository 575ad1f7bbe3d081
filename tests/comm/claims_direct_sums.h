// Claims (see claims.h) about direct sums on a stream.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "comm/ranks.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Expects direct sums exactly if `has_them`. Tests sums in a row, of different sizes, and among other
/// collectives.
inline void expect_direct_sums(Collectives& communicator, Device& device, bool has_them) {
  EXPECT_EQ(communicator.sums_directly(2, DType::f32), has_them);
  EXPECT_FALSE(communicator.sums_directly(std::int64_t{1} << 40, DType::f32)) << "few values alone";
  if (!communicator.sums_directly(2, DType::f32)) return;
  const int rank = communicator.rank(), size = communicator.size();
  const auto stream = device.make_stream({.name = "direct sums"});
  std::uint64_t seed = 500;
  for (const std::int64_t count : {2, 96, 8, 128, 2}) {
    for (const bool adds : {false, true}) {
      ++seed;
      auto values = input_of(rank, count, seed);
      const auto addend = input_of(0, count, seed + 1000);
      auto expected = sum_in_rank_order(size, 0, count, seed);
      for (std::size_t i = 0; adds && i < expected.size(); ++i) expected[i] = addend[i] + expected[i];
      Values<float> gathered(static_cast<std::size_t>(size), static_cast<float>(rank));
      communicator.sum_directly(*stream, {.values = values.data(),
                                          .addend = adds ? addend.data() : nullptr,
                                          .to = values.data(),
                                          .dtype = DType::f32,
                                          .count = count});
      communicator.all_gather(communicator.gather_stream(),
                              {.name = "test", .buffer = gathered.data(), .bytes = sizeof(float)});
      stream->synchronize();
      communicator.gather_stream().synchronize();
      EXPECT_TRUE(same_bits(values, expected)) << "rank " << rank << " of " << size << ", " << count;
      for (int r = 0; r < size; ++r) EXPECT_EQ(gathered[static_cast<std::size_t>(r)], static_cast<float>(r));
    }
  }
}

}  // namespace octet::comm
