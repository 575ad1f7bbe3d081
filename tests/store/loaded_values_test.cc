// Sending of host values to a device. The tests use a CPU device that reports inaccessible memory, with
// asynchronous streams.
#include "../src/store/nf4_loader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "device/far_device.h"
#include "octet/device/cpu.h"

namespace octet::store::loaded_values_test {
namespace {

/// Returns the contents of `out` after each of several pieces of growing and shrinking sizes.
std::vector<std::vector<float>> sent(Device& device) {
  const std::vector<std::int64_t> sizes{5, 40, 40, 7, 0, 33};
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "weights"});
  std::vector<float> out(64, -1.0f);
  std::vector<std::vector<float>> seen(sizes.size());
  {
    Departures departures(device);
    for (std::size_t piece = 0; piece < sizes.size(); ++piece) {
      // Copies are delayed, so that a buffer that is overwritten too early gives wrong values.
      cpu::enqueue(*stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      departures.send(*stream, out.data(), sizes[piece], [&](float* to) {
        std::iota(to, to + sizes[piece], 100.0f * static_cast<float>(piece));
      });
      cpu::enqueue(*stream, [&out, to = &seen[piece], count = sizes[piece]] {
        to->assign(out.begin(), out.begin() + count);
      });
    }
    stream->synchronize();
  }
  return seen;
}

void expect_all(const std::vector<std::vector<float>>& seen) {
  for (std::size_t piece = 0; piece < seen.size(); ++piece) {
    for (std::size_t i = 0; i < seen[piece].size(); ++i) {
      EXPECT_EQ(seen[piece][i], 100.0f * static_cast<float>(piece) + static_cast<float>(i)) << piece;
    }
  }
  EXPECT_EQ(seen[1].size(), 40u);
}

TEST(Gaps, AreWhereNoTensorLies) {
  model::SegmentSpec spec;
  spec.tensors.resize(2);
  spec.tensors[0].rows = 2, spec.tensors[0].cols = 3;
  spec.tensors[1].offset = 8, spec.tensors[1].cols = 4, spec.tensors[1].rows = 1;
  const auto gaps = [&](std::int64_t begin, std::int64_t count) {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    each_gap(spec, begin, count, [&](std::int64_t at, std::int64_t length) { all.emplace_back(at, length); });
    return all;
  };
  using Gaps = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(gaps(0, 16), (Gaps{{6, 2}, {12, 4}}));
  EXPECT_EQ(gaps(7, 3), (Gaps{{0, 1}}));
  EXPECT_EQ(gaps(1, 5), Gaps{});
  EXPECT_EQ(gaps(12, 4), (Gaps{{0, 4}}));
}

TEST(Departures, EveryPieceArrivesWhereTheHostDoesNotReach) {
  FarDevice device({.threads = 1, .compute_worker = true});
  expect_all(sent(device));
}

TEST(Departures, WhereTheHostReachesItWaitsForWhoReads) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1, .compute_worker = true});
  expect_all(sent(*device));
}

}  // namespace
}  // namespace octet::store::loaded_values_test
