// Sums over ranks that are concurrent streams of one GPU. All of their kernels fit on it at once.
#include "octet/ops/peer_sum.h"

#include <gtest/gtest.h>

#include <memory>

#include "octet/device/device.h"
#include "ops/peer_sums.h"

namespace octet::ops::peer_sum_test {
namespace {

constexpr std::size_t kRoom = std::size_t{64} << 10;

/// A rank: a stream, receive slots, and memory for one sum.
struct PeerRank {
  PeerRank(Device& device, int ranks) : stream(device.make_stream({.name = "rank"})), arena(device) {
    places = arena.reserve_as<std::byte>("places", peer_places_bytes(ranks, kRoom));
    begun = arena.reserve_as<std::uint64_t>("begun", 1);
    values = arena.reserve_as<std::byte>("values", kRoom);
    addend = arena.reserve_as<std::byte>("addend", kRoom);
    to = arena.reserve_as<std::byte>("to", kRoom);
  }
  std::unique_ptr<Stream> stream;
  Arena arena;
  std::byte *places, *values, *addend, *to;
  std::uint64_t* begun;
};

class GpuPeerSum : public testing::Test {
 protected:
  void make(int ranks) {
    device_ = make_cuda_device(0);
    for (int rank = 0; rank < ranks; ++rank) ranks_.push_back(std::make_unique<PeerRank>(*device_, ranks));
    for (auto& rank : ranks_) places_.push_back(rank->places);
  }
  PeerSumArgs args(std::size_t rank, const PeerSumCase& c) {
    PeerRank& r = *ranks_[rank];
    return {.values = r.values,
            .addend = c.adds ? r.addend : nullptr,
            .to = c.in_place ? r.values : r.to,
            .dtype = c.dtype,
            .count = c.count,
            .rank = static_cast<int>(rank),
            .places = places_,
            .room = kRoom,
            .begun = r.begun};
  }
  /// Copies the inputs of the case to the ranks, and returns the expected result.
  std::vector<std::uint8_t> put(const PeerSumCase& c, std::uint32_t& seed) {
    std::vector<std::vector<std::uint8_t>> parts;
    const auto addend = peer_values(c, ++seed);
    for (auto& rank : ranks_) {
      parts.push_back(peer_values(c, ++seed));
      device_->copy_to_device(*rank->stream, rank->values, parts.back().data(), parts.back().size());
      device_->copy_to_device(*rank->stream, rank->addend, addend.data(), addend.size());
      rank->stream->synchronize();
    }
    return peer_sum_of(c, parts, addend);
  }
  void expect(const PeerSumCase& c, const std::vector<std::uint8_t>& want, const std::string& when) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<std::uint8_t> made(want.size());
      PeerRank& r = *ranks_[rank];
      device_->copy_to_host(*r.stream, made.data(), c.in_place ? r.values : r.to, made.size());
      r.stream->synchronize();
      EXPECT_EQ(made, want) << when << ": rank " << rank << " of " << ranks_.size() << ", " << c.count;
    }
  }
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<PeerRank>> ranks_;
  std::vector<std::byte*> places_;
};

TEST_F(GpuPeerSum, IsThatInRankOrderOnEveryRankSumAfterSum) {
  for (const int ranks : {1, 2, 3}) {
    ranks_.clear(), places_.clear();
    make(ranks);
    std::uint32_t seed = 0;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto longest = static_cast<std::int64_t>(kRoom / size_of(dtype));
      for (const std::int64_t count : {std::int64_t{4}, longest, std::int64_t{4096}, std::int64_t{12}}) {
        for (const bool adds : {false, true}) {
          for (const bool in_place : {false, true}) {
            const PeerSumCase c{dtype, count, adds, in_place};
            const auto want = put(c, seed);
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
              peer_sum(*ranks_[rank]->stream, args(rank, c));
            expect(c, want, "enqueued");
          }
        }
      }
    }
  }
}

// Replays the same recorded sums ten times with other values.
TEST_F(GpuPeerSum, CanBeReplayed) {
  make(2);
  const PeerSumCase c{DType::bf16, 4096, true, false};
  std::uint32_t seed = 100;
  auto want = put(c, seed);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) peer_sum(*ranks_[rank]->stream, args(rank, c));
  expect(c, want, "before");
  std::vector<std::unique_ptr<Recording>> recordings;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    recordings.push_back(
        record(*ranks_[rank]->stream, [&] { peer_sum(*ranks_[rank]->stream, args(rank, c)); }));
    ASSERT_NE(recordings.back(), nullptr);
  }
  for (int round = 0; round < 10; ++round) {
    want = put(c, seed);
    for (const auto& recording : recordings) recording->replay();
    expect(c, want, "replay " + std::to_string(round));
  }
}

}  // namespace
}  // namespace octet::ops::peer_sum_test
