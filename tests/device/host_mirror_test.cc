// State in host memory for a device memory that the host cannot access. FarDevice simulates such a device on
// the CPU.
#include "octet/device/host_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "device/far_device.h"

namespace octet::host_mirror_test {
namespace {

/// Tensors of odd sizes and several dtypes. Each element has a different value.
struct State {
  std::vector<float> wide = std::vector<float>(37);
  std::vector<std::uint16_t> narrow = std::vector<std::uint16_t>(101);
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(3);
  State() {
    std::iota(wide.begin(), wide.end(), 1.0f);
    std::iota(narrow.begin(), narrow.end(), std::uint16_t{1000});
    std::iota(codes.begin(), codes.end(), std::uint8_t{7});
  }
  std::vector<TensorSlice> slices() {
    return {{"wide", DType::f32, {37}, 0, 37, wide.data()},
            {"narrow", DType::bf16, {101}, 0, 101, narrow.data()},
            {"codes", DType::u8, {3}, 0, 3, codes.data()}};
  }
};

TEST(HostMirror, WhatIsFetchedIsThatOfTheDeviceAndLiesElsewhere) {
  FarDevice device;
  HostMirror mirror(device);
  State state;
  const auto there = state.slices(), here = mirror.fetch(there);
  ASSERT_EQ(here.size(), there.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_NE(here[i].data, there[i].data);
    EXPECT_EQ(here[i].name, there[i].name);
    EXPECT_EQ(std::memcmp(here[i].data, there[i].data,
                          static_cast<std::size_t>(here[i].count) * size_of(here[i].dtype)),
              0)
        << here[i].name;
  }
}

TEST(HostMirror, WhatIsSentReachesTheDeviceWhereItWasFetchedFrom) {
  FarDevice device;
  HostMirror mirror(device);
  State state;
  const State before;
  auto here = mirror.fetch(state.slices());
  for (TensorSlice& slice : here) {
    auto* bytes = static_cast<std::uint8_t*>(slice.data);
    for (std::size_t i = 0; i < static_cast<std::size_t>(slice.count) * size_of(slice.dtype); ++i)
      bytes[i] ^= 0x5A;
  }
  EXPECT_EQ(state.wide, before.wide) << "nothing is written before it is sent";
  EXPECT_FALSE(mirror.empty());
  mirror.send();
  EXPECT_TRUE(mirror.empty());
  const auto transposed = [](auto values, const auto& from) {
    values = from;
    auto* bytes = reinterpret_cast<std::uint8_t*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof values[0]; ++i) bytes[i] ^= 0x5A;
    return values;
  };
  EXPECT_EQ(std::memcmp(state.wide.data(), transposed(before.wide, before.wide).data(), 4 * 37), 0);
  EXPECT_EQ(state.narrow, transposed(before.narrow, before.narrow));
  EXPECT_EQ(state.codes, transposed(before.codes, before.codes));
}

TEST(HostMirror, WhatLiesBetweenTheRowsOfABlockIsLeftAlone) {
  FarDevice device;
  HostMirror mirror(device);
  std::vector<float> there(30);
  std::iota(there.begin(), there.end(), 0.0f);
  const std::vector<float> before = there;
  // Columns 2 … 4 of a [5, 6] matrix in device memory.
  const TensorSlice block{.name = "w",
                          .dtype = DType::f32,
                          .shape = {5, 6},
                          .begin = 2,
                          .count = 3,
                          .data = there.data() + 2,
                          .rows = 5,
                          .stride = 6,
                          .pitch = 6};
  EXPECT_EQ(HostMirror::bytes_for({block, block}, device), 2u * 64);
  const auto here = mirror.fetch({block});
  ASSERT_TRUE(here[0].dense());
  auto* values = static_cast<float*>(here[0].data);
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(values[i], static_cast<float>(i / 3 * 6 + 2 + i % 3));
    values[i] = -1;
  }
  std::fill(there.begin(), there.end(), 7.0f);  // other code changes the device memory meanwhile
  mirror.send();
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(there[static_cast<std::size_t>(i)], i % 6 >= 2 && i % 6 < 5 ? -1.0f : 7.0f) << i;
  }
}

// Pinned memory is host memory: it is read and written in place, together with fetched slices.
TEST(HostMirror, WhatIsPinnedStaysWhereItLies) {
  FarDevice device;
  HostMirror mirror(device);
  Arena arena(device);
  auto* pinned = arena.reserve_as<float>("x", 100, MemoryKind::pinned);
  std::iota(pinned, pinned + 100, 0.0f);
  State state;
  std::vector<TensorSlice> there = state.slices();
  there.insert(
      there.begin() + 1,
      {.name = "x", .dtype = DType::f32, .shape = {100}, .begin = 3, .count = 97, .data = pinned + 3});
  EXPECT_EQ(HostMirror::bytes_for(there, device), HostMirror::bytes_for(state.slices(), device));
  const auto here = mirror.fetch(there);
  EXPECT_EQ(here[1].data, pinned + 3);
  for (const std::size_t i : {0u, 2u, 3u}) EXPECT_NE(here[i].data, there[i].data);
  EXPECT_EQ(static_cast<float*>(here[0].data)[36], 37.0f);
  static_cast<float*>(here[1].data)[0] = -1;
  static_cast<float*>(here[0].data)[0] = -2;
  mirror.send();
  EXPECT_EQ(pinned[3], -1);
  EXPECT_EQ(state.wide[0], -2);
  // A plan distinguishes both kinds of memory by their addresses.
  const auto dry = make_dry_device({.stands_for = DeviceKind::cuda});
  Arena planned(*dry);
  const auto slice = [&](MemoryKind kind) {
    return TensorSlice{.name = "x",
                       .dtype = DType::f32,
                       .shape = {128},
                       .begin = 0,
                       .count = 128,
                       .data = planned.reserve("x", 512, kind)};
  };
  EXPECT_EQ(HostMirror::bytes_for({slice(MemoryKind::device), slice(MemoryKind::pinned)}, *dry), 512u);
}

TEST(HostMirror, WhereTheHostReachesTheMemoryNothingIsCopied) {
  const auto device = make_cpu_device({.threads = 1});
  HostMirror mirror(*device);
  State state;
  const auto there = state.slices(), here = mirror.fetch(there);
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_EQ(here[i].data, there[i].data);
  EXPECT_TRUE(mirror.empty());
}

}  // namespace
}  // namespace octet::host_mirror_test
