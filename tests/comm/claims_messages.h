// Claims (see claims.h) about messages between two ranks, all-to-all, channels used by several threads, and
// groups smaller than the world.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/comm/mesh.h"

namespace octet::comm {

/// Sizes in bytes: none, one, odd, and more than a piece of 4 MiB and a chunk of staging memory.
inline std::vector<std::int64_t> message_sizes() {
  return {0, 1, 7, 4099, (std::int64_t{1} << 22) + 5};
}

/// Returns the bytes that one rank sends to another.
inline Values<unsigned char> bytes_between(int from, int to, std::int64_t bytes, std::uint64_t seed) {
  Values<unsigned char> values(static_cast<std::size_t>(bytes));
  auto x = static_cast<std::uint32_t>(from * 4099 + to * 17 + static_cast<int>(seed));
  for (unsigned char& value : values)
    value = static_cast<unsigned char>((x = x * 1664525u + 1013904223u) >> 24);
  return values;
}

/// Sends from each rank to the next: all at once around the ring, and one after the other along the line and
/// back.
inline void expect_messages(Collectives& c) {
  const int rank = c.rank(), size = c.size();
  if (size == 1) {
    unsigned char byte = 0;
    EXPECT_THROW(c.send(c.gather_stream(), {.to = 0, .from = &byte, .bytes = 1}), std::logic_error);
    EXPECT_THROW(c.receive(c.gather_stream(), {.from = 1, .to = &byte, .bytes = 1}), std::logic_error);
    return;
  }
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::uint64_t seed = 3;
  for (const std::int64_t bytes : message_sizes()) {
    ++seed;
    // The two messages of a rank may differ in size.
    const auto length = [&](int from) { return bytes + from % 2 * bytes; };
    const auto sent = bytes_between(rank, next, length(rank), seed);
    Values<unsigned char> came(static_cast<std::size_t>(length(before)), 1);
    for (Stream* stream : {&c.gather_stream(), &c.reduce_stream()}) {
      std::fill(came.begin(), came.end(), 1);
      c.send_receive(*stream, {.name = "ring", .to = next, .from = sent.data(), .bytes = length(rank)},
                     {.name = "ring", .from = before, .to = came.data(), .bytes = length(before)});
      stream->synchronize();
      EXPECT_TRUE(same_bits(came, bytes_between(before, rank, length(before), seed)))
          << rank << ", " << bytes;
    }
    // Along the line. Every rank forwards the bytes that it received, and then waits for the way back.
    Values<unsigned char> handed = bytes_between(0, 0, bytes, seed);
    if (rank != 0) std::fill(handed.begin(), handed.end(), 0);
    Stream& stream = c.gather_stream();
    if (rank > 0) c.receive(stream, {.name = "there", .from = before, .to = handed.data(), .bytes = bytes});
    if (rank < size - 1) {
      c.send(stream, {.name = "there", .to = next, .from = handed.data(), .bytes = bytes});
      c.receive(stream, {.name = "back", .from = next, .to = handed.data(), .bytes = bytes});
    }
    if (rank > 0) c.send(stream, {.name = "back", .to = before, .from = handed.data(), .bytes = bytes});
    stream.synchronize();
    EXPECT_TRUE(same_bits(handed, bytes_between(0, 0, bytes, seed))) << rank << ", " << bytes;
  }
  // Several messages between two ranks arrive in order, with collectives between them.
  Values<std::int64_t> numbers(8), sums(1);
  for (int i = 0; i < 8; ++i) {
    const auto at = static_cast<std::size_t>(i);
    numbers[at] = rank == 0 ? 100 + i : 0;
    if (rank == 0) c.send(c.reduce_stream(), {.to = size - 1, .from = &numbers[at], .bytes = 8});
    if (rank == size - 1) c.receive(c.reduce_stream(), {.from = 0, .to = &numbers[at], .bytes = 8});
    sums[0] = 1;
    c.all_reduce_sum(c.reduce_stream(), "between", sums.data(), 1);
    c.reduce_stream().synchronize();
    EXPECT_EQ(sums[0], size);
    EXPECT_EQ(numbers[at], rank == 0 || rank == size - 1 ? 100 + i : 0);
  }
  EXPECT_THROW(c.send(c.gather_stream(), {.to = rank, .from = &numbers[0], .bytes = 8}), std::logic_error);
  EXPECT_THROW(c.receive(c.gather_stream(), {.from = size, .to = &numbers[0], .bytes = 8}), std::logic_error);
}

inline void expect_all_to_all(Collectives& c) {
  const int rank = c.rank(), size = c.size();
  std::uint64_t seed = 40;
  for (const std::int64_t bytes : message_sizes()) {
    if (bytes > (1 << 20) && size > 4) continue;  // memory
    ++seed;
    Values<unsigned char> from, expected;
    for (int peer = 0; peer < size; ++peer) {
      const auto out = bytes_between(rank, peer, bytes, seed), in = bytes_between(peer, rank, bytes, seed);
      from.insert(from.end(), out.begin(), out.end());
      expected.insert(expected.end(), in.begin(), in.end());
    }
    for (Stream* stream : {&c.gather_stream(), &c.reduce_stream()}) {
      Values<unsigned char> to(from.size(), 1);
      c.take_traffic();
      c.all_to_all(*stream, {.name = "test", .from = from.data(), .to = to.data(), .bytes = bytes});
      stream->synchronize();
      EXPECT_TRUE(same_bits(to, expected)) << rank << " of " << size << ", " << bytes;
      const auto traffic = c.take_traffic();
      const auto found = std::ranges::find(traffic, "all_to_all", &Traffic::kind);
      // A single rank sends nothing and need not count it.
      EXPECT_TRUE(size == 1 || (found != traffic.end() && found->bytes_sent == (size - 1) * bytes)) << bytes;
    }
  }
  Values<unsigned char> one(static_cast<std::size_t>(size) + 1);
  EXPECT_THROW(c.all_to_all(c.gather_stream(), {.from = one.data(), .to = one.data() + size - 1, .bytes = 1}),
               std::logic_error);
}

/// A second thread uses one channel as fast as it can. This thread uses another channel while collectives
/// run.
inline void expect_channels_to_be_apart(Job& job, Collectives& c) {
  constexpr int rounds = 60;
  const int rank = job.rank(), size = job.size();
  const auto saves = job.channel("saves"), other = job.channel("other");
  const auto said = [](int r, int round) {
    return std::string(static_cast<std::size_t>((r * 7 + round * 13) % 97 * 41),
                       static_cast<char>('a' + (r + round) % 26));
  };
  int wrong = 0;
  std::thread second([&] {
    for (int round = 0; round < rounds; ++round) {
      const auto all = saves->all_gather_bytes(said(rank, round));
      for (int r = 0; r < size; ++r) wrong += all[static_cast<std::size_t>(r)] != said(r, round);
      wrong += saves->broadcast(rank == round % size ? said(99, round) : "", round % size) != said(99, round);
      wrong +=
          saves->all_sum(round + rank) != std::int64_t{size} * round + std::int64_t{size} * (size - 1) / 2;
    }
  });
  const std::int64_t count = 1001;
  for (int round = 0; round < rounds / 3; ++round) {
    const auto from = input_of(rank, size * count, static_cast<std::uint64_t>(round));
    Values<float> sum(static_cast<std::size_t>(count));
    c.reduce_scatter(c.reduce_stream(),
                     {.name = "beside", .from = from.data(), .to = sum.data(), .count = count});
    // The two threads of the ranks reach the channels in different orders.
    if (rank % 2 == 0) std::this_thread::yield();
    EXPECT_EQ(other->all_max(round * 100 + rank), round * 100 + size - 1);
    EXPECT_EQ(job.all_min(round - rank), round - size + 1);
    c.reduce_stream().synchronize();
    EXPECT_TRUE(same_bits(sum, sum_in_rank_order(size, rank, count, static_cast<std::uint64_t>(round))));
  }
  second.join();
  EXPECT_EQ(wrong, 0);
}

/// Groups of one axis reduce while groups of the other axis gather, in different orders on different ranks.
/// The results follow from the inputs.
inline void expect_axes_to_be_independent(Job& job, Device& device, Carrier carrier,
                                          const std::vector<Axis>& axes) {
  const Mesh mesh(job.size(), axes);
  const Group across = mesh.group(axes[0].name, job.rank()), along = mesh.group(axes[1].name, job.rank());
  const auto first = job.collectives(across, device, carrier),
             second = job.collectives(along, device, carrier);
  EXPECT_EQ(first->size(), axes[0].size);
  EXPECT_EQ(first->rank(), mesh.coordinate(axes[0].name, job.rank()));
  EXPECT_EQ(second->size(), axes[1].size);
  EXPECT_EQ(second->channel().rank_of_job(second->rank()), job.rank());
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{257}, std::int64_t{300001}}) {
    const auto seed = static_cast<std::uint64_t>(count % 1000);
    const auto from = input_of(job.rank(), across.size() * count, seed);
    Values<float> sum(static_cast<std::size_t>(count)), expected_sum(sum), gathered, expected;
    for (std::int64_t i = 0; i < count; ++i) {
      float& one = expected_sum[static_cast<std::size_t>(i)];
      for (int member = 0; member < across.size(); ++member) {
        const float x =
            element_of(across.ranks[static_cast<std::size_t>(member)], first->rank() * count + i, seed);
        one = member == 0 ? x : one + x;
      }
    }
    for (const int rank : along.ranks) {
      const auto part = input_of(rank, count, seed + 1);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    gathered.assign(expected.size(), -1.0f);
    const auto own = input_of(job.rank(), count, seed + 1);
    std::ranges::copy(own, gathered.begin() + second->rank() * count);
    const auto reduce = [&] {
      first->reduce_scatter(
          first->reduce_stream(),
          {.name = "across", .from = from.data(), .to = sum.data(), .count = count, .hierarchical = true});
    };
    const auto gather = [&] {
      second->all_gather(
          second->gather_stream(),
          {.name = "along", .buffer = gathered.data(), .bytes = count * 4, .hierarchical = true});
    };
    job.rank() % 2 == 0 ? reduce() : gather();
    job.rank() % 2 == 0 ? gather() : reduce();
    EXPECT_EQ(second->channel().all_sum(1), along.size());
    EXPECT_EQ(first->channel().all_max(job.rank()), across.ranks.back());
    second->gather_stream().synchronize();
    first->reduce_stream().synchronize();
    // Hierarchical sums have another order. The result is equal if a node has one rank, or all ranks.
    const bool plain = first->place().nodes == 1 || first->place().nodes == first->size();
    EXPECT_TRUE(!plain || same_bits(sum, expected_sum)) << job.rank() << ", " << count;
    EXPECT_TRUE(same_bits(gathered, expected)) << job.rank() << ", " << count;
  }
  expect_messages(*first);
  expect_all_to_all(*second);
}

/// Ranks that name different groups all get an error, and can continue.
inline void expect_mismatching_groups_to_be_told(Job& job, Device& device, Carrier carrier) {
  const int rank = job.rank(), size = job.size();
  if (size < 2) return;
  const auto message_of = [&](const Group& group) -> std::string {
    try {
      job.collectives(group, device, carrier);
    } catch (const Error& error) {
      EXPECT_TRUE(error.problem().agreed);
      // One rank prints the message.
      EXPECT_EQ(error.problem().what.empty(), rank != 0) << rank;
      return rank == 0 ? error.what() : "";
    }
    ADD_FAILURE() << "rank " << rank << " of " << size << " noticed nothing";
    return "";
  };
  std::vector<int> all, alone = {rank};
  for (int r = 0; r < size; ++r) all.push_back(r);
  // The last rank names a group of itself only.
  const std::string apart = message_of({.name = "data", .ranks = rank == size - 1 ? alone : all});
  // Rank 0 names another axis.
  const std::string other = message_of({.name = rank == 0 ? "tensor" : "data", .ranks = all});
  if (rank == 0) {
    EXPECT_NE(
        apart.find("rank " + std::to_string(size - 1) + " means 'data' of ranks " + std::to_string(size - 1)),
        std::string::npos)
        << apart;
    EXPECT_NE(other.find("rank 0 means 'tensor'"), std::string::npos) << other;
  }
  EXPECT_THROW(job.channel(rank == 0 ? "saves" : "other"), Error);
  EXPECT_EQ(job.all_sum(1), size) << "and they go on";
}

}  // namespace octet::comm
