// What holds for ranks of every kind. Each function is called by all ranks of a communicator at once; the
// tests call them with threads as ranks and under mpirun. They only EXPECT, so that no rank leaves the others
// behind.
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

/// Where a reduction's result goes.
enum class Target { apart, own_slice, added };

inline void expect_reduce_scatter(Communicator& communicator, std::int64_t count, Target target,
                                  std::uint64_t seed) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  auto from = input_of(rank, size * count, seed);
  const auto before = from;
  std::vector<float> apart = input_of(rank, count, seed + 1);
  auto expected = sum_in_rank_order(size, rank, count, seed);
  if (target == Target::added) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = apart[i] + expected[i];
  }
  float* to = target == Target::own_slice ? from.data() + rank * count : apart.data();
  communicator.reduce_scatter(
      communicator.reduce_stream(),
      {.name = "test", .from = from.data(), .to = to, .count = count, .accumulate = target == Target::added});
  communicator.reduce_stream().synchronize();
  EXPECT_TRUE(same_bits(std::vector<float>(to, to + count), expected))
      << "rank " << rank << " of " << size << ", " << count << " elements, target "
      << static_cast<int>(target);
  if (target == Target::own_slice) std::copy_n(before.data() + rank * count, count, to);
  EXPECT_TRUE(same_bits(from, before)) << "the other slices stay as they are";
}

inline void expect_sums_in_rank_order(Communicator& communicator) {
  std::uint64_t seed = 1;
  for (const std::int64_t count : slice_sizes(communicator.size())) {
    for (const Target target : {Target::apart, Target::own_slice, Target::added}) {
      expect_reduce_scatter(communicator, count, target, ++seed);
    }
  }
}

/// Rank r has 1 + r % 3 addends; all are summed from the right: a1 + (a2 + (… + an)).
inline void expect_sums_in_a_given_order(Communicator& communicator) {
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
    std::vector<std::vector<float>> own;
    for (int part = 0; part < order.parts[static_cast<std::size_t>(rank)]; ++part) {
      own.push_back(input_of(first + part, size * count, seed));
    }
    std::vector<float> expected(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      float sum = element_of(addends - 1, rank * count + i, seed);
      for (int a = addends - 2; a >= 0; --a) sum = element_of(a, rank * count + i, seed) + sum;
      expected[static_cast<std::size_t>(i)] = sum;
    }
    std::vector<float> apart(static_cast<std::size_t>(count));
    for (const bool in_place : {false, true}) {
      ReduceScatterArgs args{.name = "test", .from = own.back().data(), .to = apart.data(), .count = count};
      if (in_place) args.to = own.back().data() + rank * count;
      args.order = &order;
      for (std::size_t i = 0; i + 1 < own.size(); ++i) args.earlier.push_back(own[i].data());
      communicator.reduce_scatter(communicator.reduce_stream(), args);
      communicator.reduce_stream().synchronize();
      const auto* to = static_cast<const float*>(args.to);
      EXPECT_TRUE(same_bits(std::vector<float>(to, to + count), expected))
          << "rank " << rank << " of " << size << ", " << count << " elements";
    }
  }
  // What does not fit is a mistake of the caller, found before anything travels.
  float x = 0;
  SumOrder short_order{.parts = order.parts, .merges = order.merges};
  short_order.merges.back() -= 1;
  if (addends > 1) {
    EXPECT_THROW(communicator.reduce_scatter(communicator.reduce_stream(),
                                             {.from = &x, .to = &x, .order = &short_order}),
                 std::logic_error);
  }
}

/// Values that lie as bf16 are summed like the same values in fp32, whatever the wire; sums are rounded to
/// bf16 once, where they are kept in it.
inline void expect_reductions_of_bf16_to_agree(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  Stream& stream = communicator.reduce_stream();
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{40000}}) {
    std::vector<std::uint16_t> narrow;
    std::vector<float> wide;
    for (const float x : input_of(rank, size * count, 77)) {
      narrow.push_back(to_bf16(x));
      wide.push_back(from_bf16(narrow.back()));
    }
    for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
      for (const bool by_node : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const auto old = input_of(rank, count, 78);
          std::vector<float> expected, found;
          std::vector<std::uint16_t> rounded;
          for (const float x : old) {
            rounded.push_back(to_bf16(x));
            expected.push_back(from_bf16(rounded.back()));
          }
          found = expected;
          ReduceScatterArgs args{.from = wide.data(), .to = expected.data(), .count = count};
          args.accumulate = accumulate, args.wire = wire, args.by_node = by_node;
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
    // In place.
    std::vector<float> expected(static_cast<std::size_t>(count));
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

inline void expect_all_gather(Communicator& communicator) {
  const int size = communicator.size();
  std::uint64_t seed = 100;
  for (const std::int64_t count : slice_sizes(size)) {
    ++seed;
    std::vector<float> expected;
    for (int r = 0; r < size; ++r) {
      const auto part = input_of(r, count, seed);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    std::vector<float> buffer(expected.size(), -1.0f);
    const auto own = input_of(communicator.rank(), count, seed);
    std::copy(own.begin(), own.end(), buffer.begin() + communicator.rank() * count);
    communicator.all_gather(
        communicator.gather_stream(),
        {.name = "test", .buffer = buffer.data(), .bytes = count * static_cast<std::int64_t>(sizeof(float))});
    communicator.gather_stream().synchronize();
    EXPECT_TRUE(same_bits(buffer, expected)) << communicator.rank() << " of " << size << ", " << count;
  }
  // Bytes of an odd number, at odd addresses.
  std::vector<unsigned char> bytes(static_cast<std::size_t>(size) * 7 + 1, 0);
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

/// Slices and strings that travel in several pieces, of another number from every rank.
inline void expect_long_messages_to_arrive(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size();
  if (size > 3) return;  // memory
  const auto word = [](int r, std::int64_t i) { return (std::int64_t{r} << 40) + i; };
  const std::int64_t count = (std::int64_t{5} << 20) + 3;
  std::vector<std::int64_t> words(static_cast<std::size_t>(size * count));
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
  const auto all = communicator.all_gather_bytes(text_of(rank));
  for (int r = 0; r < size; ++r) EXPECT_TRUE(all[static_cast<std::size_t>(r)] == text_of(r)) << r;
  EXPECT_TRUE(communicator.broadcast(rank == size - 1 ? text_of(3) : "", size - 1) == text_of(3));
}

inline void expect_all_reduce(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  Stream& stream = communicator.reduce_stream();
  const std::int64_t count = 300007 / size;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();

  auto maxima = input_of(rank, count, 7);
  std::vector<float> expected_maxima = input_of(0, count, 7);
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

  std::vector<std::int64_t> integers(static_cast<std::size_t>(count));
  std::vector<double> doubles(integers.size());
  std::vector<std::int64_t> expected_integers(integers.size());
  std::vector<double> expected_doubles(integers.size());
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
}

/// Even ranks enqueue their gathers first, odd ranks their reductions, each all at once.
inline void expect_queues_to_be_independent(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  constexpr int rounds = 6;
  const std::int64_t count = 20001;
  std::vector<std::vector<float>> from;
  std::vector<std::vector<float>> sums(rounds, std::vector<float>(static_cast<std::size_t>(count)));
  std::vector<std::vector<float>> gathered;
  for (int i = 0; i < rounds; ++i) {
    from.push_back(input_of(rank, size * count, static_cast<std::uint64_t>(i)));
    gathered.emplace_back(static_cast<std::size_t>(size * count));
    const auto own = input_of(rank, count, static_cast<std::uint64_t>(50 + i));
    std::copy(own.begin(), own.end(), gathered.back().begin() + rank * count);
  }
  const auto reduce = [&](int i) {
    communicator.reduce_scatter(communicator.reduce_stream(),
                                {.name = "interleaved",
                                 .from = from[static_cast<std::size_t>(i)].data(),
                                 .to = sums[static_cast<std::size_t>(i)].data(),
                                 .count = count});
  };
  const auto gather = [&](int i) {
    communicator.all_gather(communicator.gather_stream(),
                            {.name = "interleaved",
                             .buffer = gathered[static_cast<std::size_t>(i)].data(),
                             .bytes = count * static_cast<std::int64_t>(sizeof(float))});
  };
  if (rank % 3 == 0) {
    for (int i = 0; i < rounds; ++i) gather(i);
    communicator.gather_stream().synchronize();  // needs the gathers of ranks that wait for reductions
    for (int i = 0; i < rounds; ++i) reduce(i);
  } else if (rank % 3 == 1) {
    for (int i = 0; i < rounds; ++i) reduce(i);
    for (int i = 0; i < rounds; ++i) gather(i);
  } else {
    for (int i = 0; i < rounds; ++i) {
      gather(i);
      reduce(i);
    }
  }
  communicator.reduce_stream().synchronize();
  communicator.gather_stream().synchronize();
  for (int i = 0; i < rounds; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_TRUE(same_bits(sums[at], sum_in_rank_order(size, rank, count, static_cast<std::uint64_t>(i))));
    std::vector<float> expected;
    for (int r = 0; r < size; ++r) {
      const auto part = input_of(r, count, static_cast<std::uint64_t>(50 + i));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(gathered[at], expected));
  }
}

/// Collectives among events and copies of a compute stream, as a training step has them: the same buffer is
/// filled, reduced, gathered and filled again, with nothing but events between.
inline void expect_events_to_order_collectives(Communicator& communicator, Device& device) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const std::int64_t count = 1501;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  constexpr int steps = 12;
  auto compute = device.make_stream({.name = "compute"});
  auto filled = device.make_event();
  auto reduced = device.make_event();
  auto gathered = device.make_event();
  std::vector<float> gradients(static_cast<std::size_t>(size * count));
  std::vector<float> parameters(gradients.size());
  std::vector<std::vector<float>> seen(steps, std::vector<float>(gradients.size()));
  std::vector<std::vector<float>> inputs;
  for (int i = 0; i < steps; ++i)
    inputs.push_back(input_of(rank, size * count, static_cast<std::uint64_t>(i)));
  for (int i = 0; i < steps; ++i) {
    compute->wait(*reduced);  // of the step before: the gradients may be overwritten
    device.copy(*compute, gradients.data(), inputs[static_cast<std::size_t>(i)].data(), bytes * size);
    compute->record(*filled);
    compute->wait(*gathered);  // and the parameters
    communicator.reduce_stream().wait(*filled);
    communicator.reduce_scatter(communicator.reduce_stream(), {.name = "gradients",
                                                               .from = gradients.data(),
                                                               .to = parameters.data() + rank * count,
                                                               .count = count});
    communicator.reduce_stream().record(*reduced);
    communicator.gather_stream().wait(*reduced);
    communicator.all_gather(
        communicator.gather_stream(),
        {.name = "parameters", .buffer = parameters.data(), .bytes = static_cast<std::int64_t>(bytes)});
    communicator.gather_stream().record(*gathered);
    compute->wait(*gathered);
    device.copy(*compute, seen[static_cast<std::size_t>(i)].data(), parameters.data(), bytes * size);
    // The next reduction overwrites the own slice of the parameters, which this copy reads.
    compute->record(*filled);
    communicator.reduce_stream().wait(*filled);
  }
  compute->synchronize();
  for (int i = 0; i < steps; ++i) {
    std::vector<float> expected;
    for (int owner = 0; owner < size; ++owner) {
      const auto part = sum_in_rank_order(size, owner, count, static_cast<std::uint64_t>(i));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(seen[static_cast<std::size_t>(i)], expected))
        << "step " << i << " of rank " << rank;
  }
}

inline void expect_control_plane(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const auto words_of = [](int r) {
    return std::string(static_cast<std::size_t>(r % 5) * 1000, 'a' + r % 26);
  };
  const auto all = communicator.all_gather_bytes(words_of(rank));
  EXPECT_EQ(all.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size && r < static_cast<int>(all.size()); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], words_of(r)) << r;
  }
  for (const int root : {0, size / 2, size - 1}) {
    std::string secret(700001, '\0');
    for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<char>(i * 31 + root);
    EXPECT_EQ(communicator.broadcast(rank == root ? secret : "something else", root), secret);
    EXPECT_EQ(communicator.broadcast(rank == root ? "" : "something else", root), "");
  }
  EXPECT_EQ(communicator.all_sum(rank), static_cast<std::int64_t>(size) * (size - 1) / 2);
  EXPECT_EQ(communicator.all_min(rank - 3), -3);
  EXPECT_EQ(communicator.all_max(rank), size - 1);
  const auto integers = communicator.all_gather_int(-std::int64_t{rank} * (std::int64_t{1} << 40));
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(integers[static_cast<std::size_t>(r)], -std::int64_t{r} * (std::int64_t{1} << 40));
  }
  for (int i = 0; i < 20; ++i) communicator.barrier();
}

/// What each wire may lose: half a unit in the last place of every part.
inline void expect_wires_to_be_close(Communicator& communicator) {
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
    if (size == 1) break;  // nothing travels
    for (const std::int64_t count : slice_sizes(size)) {
      const auto from = input_of(rank, size * count, 11);
      std::vector<float> to(static_cast<std::size_t>(count));
      communicator.reduce_scatter(communicator.reduce_stream(),
                                  {.from = from.data(), .to = to.data(), .count = count, .wire = bound.wire});
      communicator.reduce_stream().synchronize();
      std::vector<double> exact(to.size(), 0.0);
      std::vector<double> allowed(to.size(), 0.0);
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

/// What one rank sends over a block wire, bit by bit, when all others send zeros: codes of the formats, times
/// the block's largest magnitude over the format's.
inline void expect_block_wires_to_be_exact(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  if (size == 1) return;
  const std::int64_t count = 128 * 70 + 5;
  // Each block has magnitudes of its own, down to subnormal ones; each element a share of its block's.
  const auto value_of = [&](std::int64_t owner, std::int64_t i) {
    const int exponent = static_cast<int>(i / 128 * 3) - 149 - static_cast<int>(i % 12);
    return std::ldexp(element_of(3, owner * count + i, 31), exponent);
  };
  std::vector<float> from(static_cast<std::size_t>(size * count));
  if (rank == 0) {
    for (std::int64_t i = 0; i < size * count; ++i) {
      from[static_cast<std::size_t>(i)] = value_of(i / count, i % count);
    }
  }
  for (const Wire wire : {Wire::fp8, Wire::int8}) {
    std::vector<float> to(static_cast<std::size_t>(count));
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
        wrong += to[static_cast<std::size_t>(i)] != expected;  // -0 and 0 are one
      }
    }
    EXPECT_EQ(wrong, 0) << "wire " << static_cast<int>(wire);
  }
}

/// An all-reduce of what narrow wires brought gives the same bits on all ranks, and a reduction cut into
/// other slices gives the same sums: what is rounded does not depend on the owner.
inline void expect_narrow_sums_not_to_depend_on_the_owner(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const std::int64_t count = 1024;
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    // All slices of a rank hold the same values, so every owner must arrive at the same sum.
    const auto slice = input_of(rank, count, 21);
    std::vector<float> from;
    for (int r = 0; r < size; ++r) from.insert(from.end(), slice.begin(), slice.end());
    std::vector<float> all(static_cast<std::size_t>(size * count));
    communicator.reduce_scatter(
        communicator.reduce_stream(),
        {.from = from.data(), .to = all.data() + rank * count, .count = count, .wire = wire});
    communicator.reduce_stream().synchronize();
    communicator.all_gather(communicator.gather_stream(), {.buffer = all.data(), .bytes = count * 4});
    communicator.gather_stream().synchronize();
    const std::vector<float> first(all.begin(), all.begin() + count);
    for (int r = 1; r < size; ++r) {
      const std::vector<float> other(all.begin() + r * count, all.begin() + (r + 1) * count);
      EXPECT_TRUE(same_bits(first, other)) << "owner " << r << ", wire " << static_cast<int>(wire);
    }
  }
}

/// Infinities and NaNs are not clipped by formats that have none.
inline void expect_narrow_wires_to_show_what_is_not_finite(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  if (size == 1) return;
  const std::int64_t count = 512;
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    std::vector<float> from(static_cast<std::size_t>(size * count), 1.0f);
    if (rank == size - 1) {
      for (int owner = 0; owner < size; ++owner) {
        from[static_cast<std::size_t>(owner * count + 3)] = std::numeric_limits<float>::infinity();
        from[static_cast<std::size_t>(owner * count + 130)] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    std::vector<float> to(static_cast<std::size_t>(count));
    communicator.reduce_scatter(communicator.reduce_stream(),
                                {.from = from.data(), .to = to.data(), .count = count, .wire = wire});
    communicator.reduce_stream().synchronize();
    EXPECT_FALSE(std::isfinite(to[3]));
    EXPECT_TRUE(std::isnan(to[130]));
    for (std::size_t i = 256; i < to.size(); ++i) EXPECT_FLOAT_EQ(to[i], static_cast<float>(size));
  }
}

inline void expect_errors_to_be_agreed_upon(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  int done = 0;
  communicator.together([&] { ++done; });
  EXPECT_EQ(done, 1);
  const int first = size / 2;  // the lowest rank that fails
  bool thrown = false;
  try {
    communicator.together([&] {
      if (rank >= first) {
        throw Error(Problem{.what = "no such file",
                            .found = "rank " + std::to_string(rank),
                            .where = "here",
                            .code = ExitCode::usage});
      }
    });
  } catch (const Error& error) {
    thrown = true;
    EXPECT_EQ(error.code(), ExitCode::usage);
    if (rank == first) {
      EXPECT_EQ(error.problem().what, "no such file");
      EXPECT_EQ(error.problem().found, "rank " + std::to_string(first));
      if (size > 1) {
        EXPECT_EQ(error.problem().where,
                  "here, rank " + std::to_string(first) + " on " + communicator.place().host);
      }
    } else {
      EXPECT_EQ(error.problem().what, "");
    }
  }
  EXPECT_TRUE(thrown);
  // Other exceptions are agreed upon as well.
  EXPECT_THROW(communicator.together([&] {
    if (rank == 0) throw std::bad_alloc();
  }),
               Error);
  communicator.barrier();
}

inline void expect_traffic_to_be_counted(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  communicator.take_traffic();
  std::vector<float> values(static_cast<std::size_t>(size) * 256, 1.0f);
  for (int i = 0; i < 3; ++i) {
    communicator.reduce_scatter(communicator.reduce_stream(), {.from = values.data(),
                                                               .to = values.data() + rank * 256,
                                                               .count = 256,
                                                               .wire = i == 2 ? Wire::int8 : Wire::f32});
  }
  communicator.reduce_stream().synchronize();
  communicator.all_gather(communicator.gather_stream(), {.buffer = values.data(), .bytes = 1024});
  communicator.gather_stream().synchronize();
  const auto traffic = communicator.take_traffic();
  int kinds = 0;
  for (const Traffic& one : traffic) {
    EXPECT_GE(one.seconds, 0.0);
    if (one.kind == "reduce_scatter") {
      ++kinds;
      EXPECT_EQ(one.calls, 3);
      EXPECT_EQ(one.bytes_sent, (size - 1) * (1024 + 1024 + (256 + 2 * 4)));
    }
    if (one.kind == "all_gather") {
      ++kinds;
      EXPECT_EQ(one.calls, 1);
      EXPECT_EQ(one.bytes_sent, (size - 1) * 1024);
    }
  }
  EXPECT_EQ(kinds, 2);
  EXPECT_TRUE(communicator.take_traffic().empty());
}

/// What comes out is what the owner has after rounding, on all ranks alike, and near what went in.
inline void expect_narrow_gathers_to_agree(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
    for (const std::int64_t count : slice_sizes(size)) {
      std::vector<float> buffer(static_cast<std::size_t>(size * count), -1.0f);
      const auto own = input_of(rank, count, 9);
      std::copy(own.begin(), own.end(), buffer.begin() + rank * count);
      communicator.all_gather_values(communicator.reduce_stream(),
                                     {.name = "test", .buffer = buffer.data(), .count = count, .wire = wire});
      communicator.reduce_stream().synchronize();
      const std::string bytes(reinterpret_cast<const char*>(buffer.data()), buffer.size() * sizeof(float));
      for (const std::string& other : communicator.all_gather_bytes(bytes)) EXPECT_TRUE(other == bytes);
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

/// A buffer of bf16 is left with the values that a buffer of the same numbers in fp32 is left with, rounded.
inline void expect_gathers_of_bf16_to_agree(Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
    for (const std::int64_t count : slice_sizes(size)) {
      std::vector<std::uint16_t> narrow(static_cast<std::size_t>(size * count), 1);
      std::vector<float> wide(narrow.size(), -1.0f);
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
