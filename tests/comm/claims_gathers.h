// Claims (see claims.h) about gathers.
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

inline void expect_all_gather(Collectives& communicator) {
  const int size = communicator.size();
  std::uint64_t seed = 100;
  for (const std::int64_t count : slice_sizes(size)) {
    ++seed;
    Values<float> expected;
    for (int r = 0; r < size; ++r) {
      const auto part = input_of(r, count, seed);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    Values<float> buffer(expected.size(), -1.0f);
    const auto own = input_of(communicator.rank(), count, seed);
    std::copy(own.begin(), own.end(), buffer.begin() + communicator.rank() * count);
    communicator.all_gather(
        communicator.gather_stream(),
        {.name = "test", .buffer = buffer.data(), .bytes = count * static_cast<std::int64_t>(sizeof(float))});
    communicator.gather_stream().synchronize();
    EXPECT_TRUE(same_bits(buffer, expected)) << communicator.rank() << " of " << size << ", " << count;
  }
  // An odd number of bytes, at odd addresses.
  Values<unsigned char> bytes(static_cast<std::size_t>(size) * 7 + 1, 0);
  for (int i = 0; i < 7; ++i) {
    bytes[static_cast<std::size_t>(communicator.rank() * 7 + i + 1)] =
        static_cast<unsigned char>(communicator.rank() * 7 + i);
  }
  communicator.all_gather(communicator.gather_stream(), {.buffer = bytes.data() + 1, .bytes = 7});
  communicator.gather_stream().synchronize();
  for (int i = 0; i < size * 7; ++i) {
    EXPECT_EQ(bytes[static_cast<std::size_t>(i + 1)], static_cast<unsigned char>(i));
  }
}

/// Tests slices and strings that are sent in several pieces, with different numbers of pieces per rank.
inline void expect_long_messages_to_arrive(Collectives& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  if (size > 3) return;  // memory
  const auto word = [](int r, std::int64_t i) { return (std::int64_t{r} << 40) + i; };
  const std::int64_t count = (std::int64_t{5} << 20) + 3;
  Values<std::int64_t> words(static_cast<std::size_t>(size * count));
  for (std::int64_t i = 0; i < count; ++i) words[static_cast<std::size_t>(rank * count + i)] = word(rank, i);
  communicator.all_gather(communicator.gather_stream(),
                          {.name = "long", .buffer = words.data(), .bytes = 8 * count});
  communicator.gather_stream().synchronize();
  std::int64_t wrong = 0;
  for (int r = 0; r < size; ++r) {
    for (std::int64_t i = 0; i < count; ++i)
      wrong += words[static_cast<std::size_t>(r * count + i)] != word(r, i);
  }
  EXPECT_EQ(wrong, 0);

  const auto text_of = [](int r) {
    std::string text((std::size_t{1} << 24) * static_cast<std::size_t>(r) + static_cast<std::size_t>(r % 2),
                     '\0');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 65536 + r);
    return text;
  };
  const auto all = communicator.channel().all_gather_bytes(text_of(rank));
  for (int r = 0; r < size; ++r) EXPECT_TRUE(all[static_cast<std::size_t>(r)] == text_of(r)) << r;
  EXPECT_TRUE(communicator.channel().broadcast(rank == size - 1 ? text_of(3) : "", size - 1) == text_of(3));
}

/// The results equal the owner's rounded values on all ranks, and are near the inputs.
inline void expect_narrow_gathers_to_agree(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
    for (const std::int64_t count : slice_sizes(size)) {
      Values<float> buffer(static_cast<std::size_t>(size * count), -1.0f);
      const auto own = input_of(rank, count, 9);
      std::copy(own.begin(), own.end(), buffer.begin() + rank * count);
      communicator.all_gather_values(communicator.reduce_stream(),
                                     {.name = "test", .buffer = buffer.data(), .count = count, .wire = wire});
      communicator.reduce_stream().synchronize();
      const std::string bytes(reinterpret_cast<const char*>(buffer.data()), buffer.size() * sizeof(float));
      for (const std::string& other : communicator.channel().all_gather_bytes(bytes))
        EXPECT_TRUE(other == bytes);
      double error = 0, norm = 0;
      for (int r = 0; r < size; ++r) {
        const auto sent = input_of(r, count, 9);
        for (std::int64_t i = 0; i < count; ++i) {
          const double x = sent[static_cast<std::size_t>(i)];
          const double d = buffer[static_cast<std::size_t>(r * count + i)] - x;
          error += d * d;
          norm += x * x;
        }
      }
      const bool exact = wire == Wire::f32 || size == 1;
      const double bound = exact ? 0.0 : wire == Wire::bf16 ? 0.004 : wire == Wire::fp8 ? 0.035 : 0.02;
      EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm)) << static_cast<int>(wire) << " " << count;
    }
  }
}

/// The rounding error of each element of the own slice is added to its residual, in every piece of a long
/// message.
inline void expect_gathers_to_keep_what_they_lose(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  if (size == 1) return;  // nothing is rounded
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    for (const std::int64_t count : slice_sizes(size)) {
      Values<float> buffer(static_cast<std::size_t>(size * count), -1.0f);
      const auto own = input_of(rank, count, 12);
      std::copy(own.begin(), own.end(), buffer.begin() + rank * count);
      const auto before = [](std::int64_t i) { return static_cast<float>(i % 5 - 2); };
      Values<std::uint16_t> residual(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) residual[static_cast<std::size_t>(i)] = to_bf16(before(i));
      communicator.all_gather_values(communicator.reduce_stream(), {.name = "residual",
                                                                    .buffer = buffer.data(),
                                                                    .count = count,
                                                                    .wire = wire,
                                                                    .residual = residual.data()});
      communicator.reduce_stream().synchronize();
      std::int64_t other = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float lost = own[at] - buffer[static_cast<std::size_t>(rank * count + i)];
        other += residual[at] != to_bf16(before(i) + lost);
      }
      EXPECT_EQ(other, 0) << static_cast<int>(wire) << " " << count;
    }
  }
}

/// A bf16 buffer ends with the rounded values of an fp32 buffer with equal inputs.
inline void expect_gathers_of_bf16_to_agree(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
    for (const std::int64_t count : slice_sizes(size)) {
      Values<std::uint16_t> narrow(static_cast<std::size_t>(size * count), 1);
      Values<float> wide(narrow.size(), -1.0f);
      const auto own = input_of(rank, count, 11);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(rank * count + i);
        narrow[at] = to_bf16(own[static_cast<std::size_t>(i)]);
        wide[at] = from_bf16(narrow[at]);
      }
      Stream& stream = communicator.gather_stream();
      communicator.all_gather_values(
          stream,
          {.name = "bf16", .buffer = narrow.data(), .dtype = DType::bf16, .count = count, .wire = wire});
      communicator.all_gather_values(stream,
                                     {.name = "f32", .buffer = wide.data(), .count = count, .wire = wire});
      stream.synchronize();
      std::size_t other = 0;
      for (std::size_t i = 0; i < narrow.size(); ++i) other += narrow[i] != to_bf16(wide[i]);
      EXPECT_EQ(other, 0u) << static_cast<int>(wire) << " " << count;
    }
  }
}

}  // namespace octet::comm
