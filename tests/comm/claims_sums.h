// Claims (see claims.h) about sums over ranks.
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

/// The destination of a reduction's result.
enum class Target { apart, own_slice, added };

inline void expect_reduce_scatter(Collectives& communicator, std::int64_t count, Target target,
                                  std::uint64_t seed) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  auto from = input_of(rank, size * count, seed);
  const auto before = from;
  Values<float> apart = input_of(rank, count, seed + 1);
  auto expected = sum_in_rank_order(size, rank, count, seed);
  if (target == Target::added) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = apart[i] + expected[i];
  }
  float* to = target == Target::own_slice ? from.data() + rank * count : apart.data();
  communicator.reduce_scatter(
      communicator.reduce_stream(),
      {.name = "test", .from = from.data(), .to = to, .count = count, .accumulate = target == Target::added});
  communicator.reduce_stream().synchronize();
  EXPECT_TRUE(same_bits(Values<float>(to, to + count), expected))
      << "rank " << rank << " of " << size << ", " << count << " elements, target "
      << static_cast<int>(target);
  if (target == Target::own_slice) std::copy_n(before.data() + rank * count, count, to);
  EXPECT_TRUE(same_bits(from, before)) << "the other slices stay as they are";
}

inline void expect_sums_in_rank_order(Collectives& communicator) {
  std::uint64_t seed = 1;
  for (const std::int64_t count : slice_sizes(communicator.size())) {
    for (const Target target : {Target::apart, Target::own_slice, Target::added}) {
      expect_reduce_scatter(communicator, count, target, ++seed);
    }
  }
}

/// Rank r has 1 + r % 3 addends; all are summed from the right: a1 + (a2 + (… + an)).
inline void expect_sums_in_a_given_order(Collectives& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  SumOrder order;
  for (int r = 0; r < size; ++r) {
    order.parts.push_back(1 + r % 3);
    order.merges.resize(order.merges.size() + static_cast<std::size_t>(order.parts.back()), 0);
  }
  const auto addends = static_cast<int>(order.merges.size());
  order.merges.back() = addends - 1;
  std::uint64_t seed = 40;
  for (const std::int64_t count : slice_sizes(size)) {
    ++seed;
    int first = 0;
    for (int r = 0; r < rank; ++r) first += order.parts[static_cast<std::size_t>(r)];
    std::vector<Values<float>> own;
    for (int part = 0; part < order.parts[static_cast<std::size_t>(rank)]; ++part) {
      own.push_back(input_of(first + part, size * count, seed));
    }
    Values<float> expected(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      float sum = element_of(addends - 1, rank * count + i, seed);
      for (int a = addends - 2; a >= 0; --a) sum = element_of(a, rank * count + i, seed) + sum;
      expected[static_cast<std::size_t>(i)] = sum;
    }
    Values<float> apart(static_cast<std::size_t>(count));
    for (const bool in_place : {false, true}) {
      ReduceScatterArgs args{.name = "test", .from = own.back().data(), .to = apart.data(), .count = count};
      if (in_place) args.to = own.back().data() + rank * count;
      args.order = &order;
      for (std::size_t i = 0; i + 1 < own.size(); ++i) args.earlier.push_back(own[i].data());
      communicator.reduce_scatter(communicator.reduce_stream(), args);
      communicator.reduce_stream().synchronize();
      const auto* to = static_cast<const float*>(args.to);
      EXPECT_TRUE(same_bits(Values<float>(to, to + count), expected))
          << "rank " << rank << " of " << size << ", " << count << " elements";
    }
  }
  // Arguments that do not match are a caller's error, which is detected before any message.
  float x = 0;
  SumOrder short_order{.parts = order.parts, .merges = order.merges};
  short_order.merges.back() -= 1;
  if (addends > 1) {
    EXPECT_THROW(communicator.reduce_scatter(communicator.reduce_stream(),
                                             {.from = &x, .to = &x, .order = &short_order}),
                 std::logic_error);
  }
}

/// Every rank has three addends, which are sent in a wire format one by one, and summed rank after rank.
inline void expect_sums_of_several_addends(Collectives& communicator) {
  constexpr int kAddends = 3;
  const int rank = communicator.rank(), size = communicator.size();
  for (const Wire wire : {Wire::f32, Wire::bf16, Wire::int8}) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{300001}}) {
      std::vector<Values<float>> own;
      for (int a = 0; a < kAddends; ++a) own.push_back(input_of(rank * kAddends + a, size * count, 91));
      const Values<float> old = input_of(rank, count, 92);
      Values<float> sum(static_cast<std::size_t>(count));
      for (int a = 0; a < size * kAddends; ++a) {
        Values<float> addend;
        for (std::int64_t i = 0; i < count; ++i) addend.push_back(element_of(a, rank * count + i, 91));
        if (wire != Wire::f32 && size > 1) {
          Values<std::uint32_t> encoded(ops::wire_bytes(wire, count) / 4 + 1);
          ops::encode_values({.wire = wire, .from = addend.data(), .count = count, .to = encoded.data()});
          ops::decode_values({.wire = wire, .part = encoded.data(), .count = count, .to = addend.data()});
        }
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a == 0 ? addend[i] : sum[i] + addend[i];
      }
      for (const bool accumulate : {false, true}) {
        Values<float> found = old;
        communicator.reduce_scatter(communicator.reduce_stream(),
                                    {.name = "addends",
                                     .from = own[2].data(),
                                     .to = found.data(),
                                     .count = count,
                                     .accumulate = accumulate,
                                     .wire = wire,
                                     .earlier = {own[0].data(), own[1].data()}});
        communicator.reduce_stream().synchronize();
        Values<float> expected = sum;
        for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] = old[i] + sum[i];
        EXPECT_TRUE(same_bits(found, expected)) << "rank " << rank << " of " << size << ", " << count
                                                << " elements, wire " << static_cast<int>(wire);
      }
    }
  }
}

/// Values stored in bf16 are summed like equal fp32 values, with any wire format. The sum is rounded to bf16
/// once, if the result is stored in bf16.
inline void expect_reductions_of_bf16_to_agree(Collectives& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  Stream& stream = communicator.reduce_stream();
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{40000}}) {
    Values<std::uint16_t> narrow;
    Values<float> wide;
    for (const float x : input_of(rank, size * count, 77)) {
      narrow.push_back(to_bf16(x));
      wide.push_back(from_bf16(narrow.back()));
    }
    for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
      for (const bool hierarchical : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const auto old = input_of(rank, count, 78);
          Values<float> expected, found;
          Values<std::uint16_t> rounded;
          for (const float x : old) {
            rounded.push_back(to_bf16(x));
            expected.push_back(from_bf16(rounded.back()));
          }
          found = expected;
          ReduceScatterArgs args{.from = wide.data(), .to = expected.data(), .count = count};
          args.accumulate = accumulate, args.wire = wire, args.hierarchical = hierarchical;
          communicator.reduce_scatter(stream, args);
          args.from = narrow.data(), args.from_dtype = DType::bf16, args.to = found.data();
          communicator.reduce_scatter(stream, args);
          args.to = rounded.data(), args.to_dtype = DType::bf16;
          communicator.reduce_scatter(stream, args);
          stream.synchronize();
          EXPECT_TRUE(same_bits(found, expected)) << size << " ranks, wire " << static_cast<int>(wire);
          for (std::size_t i = 0; i < rounded.size(); ++i) {
            EXPECT_EQ(rounded[i], to_bf16(expected[i])) << i;
            if (rounded[i] != to_bf16(expected[i])) break;
          }
        }
      }
    }
    // Reduces in place.
    Values<float> expected(static_cast<std::size_t>(count));
    communicator.reduce_scatter(stream, {.from = wide.data(), .to = expected.data(), .count = count});
    std::uint16_t* own = narrow.data() + rank * count;
    communicator.reduce_scatter(stream, {.from = narrow.data(),
                                         .from_dtype = DType::bf16,
                                         .to = own,
                                         .to_dtype = DType::bf16,
                                         .count = count});
    stream.synchronize();
    for (std::int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(own[i], to_bf16(expected[static_cast<std::size_t>(i)])) << i;
      if (own[i] != to_bf16(expected[static_cast<std::size_t>(i)])) break;
    }
  }
}

inline void expect_all_reduce(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  Stream& stream = communicator.reduce_stream();
  const std::int64_t count = 300007 / size;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();

  auto maxima = input_of(rank, count, 7);
  Values<float> expected_maxima = input_of(0, count, 7);
  for (int r = 1; r < size; ++r) {
    const auto other = input_of(r, count, 7);
    for (std::size_t i = 0; i < other.size(); ++i)
      expected_maxima[i] = std::max(expected_maxima[i], other[i]);
  }
  if (rank == size / 2) maxima[5] = nan;
  if (rank == size - 1) maxima[6] = infinity;
  maxima[7] = -infinity;
  expected_maxima[5] = nan;
  expected_maxima[6] = infinity;
  expected_maxima[7] = -infinity;

  Values<std::int64_t> integers(static_cast<std::size_t>(count));
  Values<double> doubles(integers.size());
  Values<std::int64_t> expected_integers(integers.size());
  Values<double> expected_doubles(integers.size());
  for (int r = 0; r < size; ++r) {
    const auto values = input_of(r, count, 8);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = static_cast<double>(values[i]) / 3.0;
      const std::int64_t integer = static_cast<std::int64_t>(values[i] * 1e6f) + (std::int64_t{1} << 40);
      expected_integers[i] += integer;
      expected_doubles[i] = r == 0 ? value : expected_doubles[i] + value;
      if (r == rank) integers[i] = integer;
      if (r == rank) doubles[i] = value;
    }
  }
  // Both kinds at once: in several rounds, and with so few values that one round suffices.
  auto both_integers = integers;
  auto both_doubles = doubles;
  communicator.all_reduce_sums(stream, "both", both_integers.data(), count, both_doubles.data(), count);
  Values<std::int64_t> few_integers(integers.begin(), integers.begin() + 5);
  Values<double> few_doubles(doubles.begin(), doubles.begin() + 3);
  communicator.all_reduce_sums(stream, "few", few_integers.data(), 5, few_doubles.data(), 3);
  communicator.all_reduce_max(stream, "maxima", maxima.data(), count);
  communicator.all_reduce_sum(stream, "integers", integers.data(), count);
  communicator.all_reduce_sum(stream, "doubles", doubles.data(), count);
  communicator.all_reduce_max(communicator.gather_stream(), "nothing", nullptr, 0);
  stream.synchronize();
  if (size > 1) {
    EXPECT_TRUE(same_bits(maxima, expected_maxima));
  }
  EXPECT_TRUE(same_bits(integers, expected_integers));
  EXPECT_TRUE(same_bits(doubles, expected_doubles));
  EXPECT_TRUE(same_bits(both_integers, integers) && same_bits(both_doubles, doubles));
  EXPECT_TRUE(std::equal(few_integers.begin(), few_integers.end(), integers.begin()));
  EXPECT_TRUE(std::equal(few_doubles.begin(), few_doubles.end(), doubles.begin()));
}

/// Sums in any order: fp32 in place, into other memory and accumulated; and bf16, rounded after each
/// addition.
inline void expect_sums_to_be_close(Collectives& communicator) {
  const int size = communicator.size(), rank = communicator.rank();
  Stream& stream = communicator.reduce_stream();
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1001}, std::int64_t{3} << 18}) {
    for (const bool narrow : {false, true}) {
      for (const bool accumulate : {false, true}) {
        Values<float> wide = input_of(rank, size * count, 5), apart(static_cast<std::size_t>(count), 8.0f);
        Values<std::uint16_t> values;
        for (const float x : wide) values.push_back(to_bf16(x));
        communicator.reduce_scatter(stream,
                                    {.name = "test",
                                     .from = narrow ? static_cast<const void*>(values.data()) : wide.data(),
                                     .from_dtype = narrow ? DType::bf16 : DType::f32,
                                     .to = accumulate || narrow ? apart.data() : wide.data() + rank * count,
                                     .count = count,
                                     .accumulate = accumulate});
        stream.synchronize();
        const float* found = accumulate || narrow ? apart.data() : wide.data() + rank * count;
        for (std::int64_t i = 0; i < count; ++i) {
          double sum = accumulate ? 8 : 0, magnitude = sum;
          for (int r = 0; r < size; ++r) {
            const float x = element_of(r, rank * count + i, 5);
            sum += narrow ? from_bf16(to_bf16(x)) : x;
            magnitude += std::abs(x);
          }
          ASSERT_NEAR(found[i], sum, magnitude * (narrow ? 0x1p-8 : 0x1p-22) * size)
              << i << " of " << count << (narrow ? ", bf16" : ", fp32");
        }
      }
    }
  }
}

}  // namespace octet::comm
