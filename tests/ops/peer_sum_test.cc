// Sums over ranks that are threads. Each rank has places that the other ranks write to.
#include "octet/ops/peer_sum.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "octet/base/error.h"
#include "octet/device/device.h"
#include "ops/peer_sums.h"

namespace octet::ops::peer_sum_test {
namespace {

constexpr std::size_t kRoom = 4096;

/// The places of a group, shared by its ranks.
struct Group {
  explicit Group(int ranks) : begun(static_cast<std::size_t>(ranks)) {
    const std::size_t words = peer_places_bytes(ranks, kRoom) / sizeof(std::uint64_t);
    for (int rank = 0; rank < ranks; ++rank) {
      memory.push_back(std::make_unique<std::uint64_t[]>(words));
      places.push_back(reinterpret_cast<std::byte*>(memory.back().get()));
    }
  }
  PeerSumArgs args(int rank, const PeerSumCase& c) {
    return {.dtype = c.dtype,
            .count = c.count,
            .rank = rank,
            .places = places,
            .room = kRoom,
            .begun = &begun[static_cast<std::size_t>(rank)]};
  }
  std::vector<std::unique_ptr<std::uint64_t[]>> memory;
  std::vector<std::byte*> places;
  std::vector<std::uint64_t> begun;
};

/// All variants, with small and maximal counts in turns.
std::vector<PeerSumCase> cases() {
  std::vector<PeerSumCase> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto longest = static_cast<std::int64_t>(kRoom / size_of(dtype));
    for (const std::int64_t count : {std::int64_t{4}, longest, std::int64_t{12}, std::int64_t{1000}}) {
      for (const bool adds : {false, true})
        for (const bool in_place : {false, true}) all.push_back({dtype, count, adds, in_place});
    }
  }
  return all;
}

class PeerSum : public testing::TestWithParam<int> {};

TEST_P(PeerSum, IsThatInRankOrderOnEveryRankSumAfterSum) {
  const int ranks = GetParam();
  Group group(ranks);
  std::atomic<int> wrong = 0;
  const auto run = [&](int rank) {
    const auto device = make_cpu_device({.threads = 1});
    const auto stream = device->make_stream({.name = "test"});
    std::uint32_t seed = 0;
    for (int round = 0; round < 3; ++round) {
      for (const PeerSumCase& c : cases()) {
        std::vector<std::vector<std::uint8_t>> parts;
        for (int r = 0; r < ranks; ++r) parts.push_back(peer_values(c, ++seed));
        const auto addend = peer_values(c, ++seed);
        const auto want = peer_sum_of(c, parts, addend);
        auto values = parts[static_cast<std::size_t>(rank)];
        std::vector<std::uint8_t> apart(values.size());
        PeerSumArgs args = group.args(rank, c);
        args.values = values.data();
        args.to = c.in_place ? values.data() : apart.data();
        if (c.adds) args.addend = addend.data();
        if (seed % 7 == static_cast<std::uint32_t>(rank))
          std::this_thread::sleep_for(std::chrono::microseconds(300));
        peer_sum(*stream, args);
        stream->synchronize();
        if ((c.in_place ? values : apart) != want) ++wrong;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}
INSTANTIATE_TEST_SUITE_P(Ranks, PeerSum, testing::Values(1, 2, 3, 5, kMostPeers));

TEST(PeerSumOfOthers, ThatNeverComeEndsWithWhatTheCallerThrows) {
  Group group(2);
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  std::vector<float> values(4, 1.0f);
  PeerSumArgs args = group.args(0, {DType::f32, 4});
  args.values = args.to = values.data();
  int looks = 0;
  args.alive = [&looks] {
    if (++looks > 3) throw std::runtime_error("a rank is gone");
  };
  EXPECT_THROW(
      {
        peer_sum(*stream, args);
        stream->synchronize();
      },
      std::runtime_error);
}

TEST(PeerSumForms, TakenAreWholeWordsThatThereIsRoomFor) {
  EXPECT_TRUE(peer_sum_takes(2, DType::f32, 8));
  EXPECT_TRUE(peer_sum_takes(4, DType::bf16, 8));
  EXPECT_FALSE(peer_sum_takes(2, DType::f32, 0));
  EXPECT_FALSE(peer_sum_takes(4, DType::f32, 8)) << "no room";
  EXPECT_FALSE(peer_sum_takes(3, DType::f32, 4096)) << "half a word";
  EXPECT_FALSE(peer_sum_takes(6, DType::bf16, 4096));
  EXPECT_FALSE(peer_sum_takes(0, DType::f32, 4096));
  EXPECT_FALSE(peer_sum_takes(8, DType::e4m3, 4096));
}

TEST(PeerSumForms, OthersAreRefused) {
  Group group(2);
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  std::vector<float> values(4), sums(4);
  PeerSumArgs args = group.args(0, {DType::f32, 4});
  args.values = values.data();
  args.to = sums.data();
  const auto refused = [&](const std::function<void(PeerSumArgs&)>& change) {
    PeerSumArgs bad = args;
    change(bad);
    EXPECT_THROW(peer_sum(*stream, bad), std::logic_error);
  };
  refused([](PeerSumArgs& a) { a.count = 3; });
  refused([](PeerSumArgs& a) { a.rank = 2; });
  refused([](PeerSumArgs& a) { a.places = {}; });
  refused([](PeerSumArgs& a) { a.addend = a.to; });
  refused([](PeerSumArgs& a) { a.begun = nullptr; });
  refused([](PeerSumArgs& a) { a.room = 8; });
}

}  // namespace
}  // namespace octet::ops::peer_sum_test
