// Claims (see claims.h) about concurrency, the control plane, errors and counters.
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

/// Even ranks enqueue all gathers first, and odd ranks all reductions.
inline void expect_queues_to_be_independent(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  constexpr int rounds = 6;
  const std::int64_t count = 20001;
  std::vector<Values<float>> from;
  std::vector<Values<float>> sums(rounds, Values<float>(static_cast<std::size_t>(count)));
  std::vector<Values<float>> gathered;
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
    Values<float> expected;
    for (int r = 0; r < size; ++r) {
      const auto part = input_of(r, count, static_cast<std::uint64_t>(50 + i));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(gathered[at], expected));
  }
}

/// Collectives between events and copies of a compute stream, as in a training step. One buffer is filled,
/// reduced, gathered and filled again, ordered only by events.
inline void expect_events_to_order_collectives(Collectives& communicator, Device& device) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  const std::int64_t count = 1501;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  constexpr int steps = 12;
  auto compute = device.make_stream({.name = "compute"});
  auto filled = device.make_event();
  auto reduced = device.make_event();
  auto gathered = device.make_event();
  Values<float> gradients(static_cast<std::size_t>(size * count));
  Values<float> parameters(gradients.size());
  std::vector<Values<float>> seen(steps, Values<float>(gradients.size()));
  std::vector<Values<float>> inputs;
  for (int i = 0; i < steps; ++i)
    inputs.push_back(input_of(rank, size * count, static_cast<std::uint64_t>(i)));
  for (int i = 0; i < steps; ++i) {
    compute->wait(*reduced);  // wait for the previous step, so that the gradients may be overwritten
    device.copy(*compute, gradients.data(), inputs[static_cast<std::size_t>(i)].data(), bytes * size);
    compute->record(*filled);
    compute->wait(*gathered);  // likewise for the parameters
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
    Values<float> expected;
    for (int owner = 0; owner < size; ++owner) {
      const auto part = sum_in_rank_order(size, owner, count, static_cast<std::uint64_t>(i));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(same_bits(seen[static_cast<std::size_t>(i)], expected))
        << "step " << i << " of rank " << rank;
  }
}

inline void expect_control_plane(Channel& channel) {
  const int rank = channel.rank();
  const int size = channel.size();
  const auto words_of = [](int r) {
    return std::string(static_cast<std::size_t>(r % 5) * 1000, 'a' + r % 26);
  };
  const auto all = channel.all_gather_bytes(words_of(rank));
  EXPECT_EQ(all.size(), static_cast<std::size_t>(size));
  for (int r = 0; r < size && r < static_cast<int>(all.size()); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], words_of(r)) << r;
  }
  for (const int root : {0, size / 2, size - 1}) {
    std::string secret(700001, '\0');
    for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<char>(i * 31 + root);
    EXPECT_EQ(channel.broadcast(rank == root ? secret : "something else", root), secret);
    EXPECT_EQ(channel.broadcast(rank == root ? "" : "something else", root), "");
  }
  EXPECT_EQ(channel.all_sum(rank), static_cast<std::int64_t>(size) * (size - 1) / 2);
  EXPECT_EQ(channel.all_min(rank - 3), -3);
  EXPECT_EQ(channel.all_max(rank), size - 1);
  const auto integers = channel.all_gather_int(-std::int64_t{rank} * (std::int64_t{1} << 40));
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(integers[static_cast<std::size_t>(r)], -std::int64_t{r} * (std::int64_t{1} << 40));
  }
  for (int i = 0; i < 20; ++i) channel.barrier();
}

inline void expect_errors_to_be_agreed_upon(Channel& channel) {
  const int rank = channel.rank();
  const int size = channel.size();
  int done = 0;
  channel.together([&] { ++done; });
  EXPECT_EQ(done, 1);
  const int first = size / 2;  // the lowest rank that fails
  bool thrown = false;
  try {
    channel.together([&] {
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
                  "here, rank " + std::to_string(channel.rank_of_job(first)) + " on " + channel.place().host);
      }
    } else {
      EXPECT_EQ(error.problem().what, "");
    }
  }
  EXPECT_TRUE(thrown);
  // An inner call has agreed before, on any rank.
  try {
    channel.together([&] {
      channel.together([&] {
        if (rank == first) throw Error(Problem{.what = "inside", .code = ExitCode::usage});
      });
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.problem().what, rank == first ? "inside" : "");
    EXPECT_EQ(error.code(), ExitCode::usage);
    const std::string& where = error.problem().where;
    EXPECT_EQ(where.find("rank"), where.rfind("rank")) << where;
  }
  // Ranks also agree on other exceptions.
  EXPECT_THROW(channel.together([&] {
    if (rank == 0) throw std::bad_alloc();
  }),
               Error);
  channel.barrier();
}

inline void expect_traffic_to_be_counted(Collectives& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  communicator.take_traffic();
  Values<float> values(static_cast<std::size_t>(size) * 256, 1.0f);
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

}  // namespace octet::comm
