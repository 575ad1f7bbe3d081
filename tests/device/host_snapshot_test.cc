// A copy of slices at one moment, while the device continues.
#include "octet/device/host_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "octet/device/cpu.h"

namespace octet::host_snapshot_test {
namespace {

/// A matrix with slices at arbitrary offsets, columns of another matrix, a moving vector and a number in host
/// memory.
struct State {
  std::vector<float> wide = std::vector<float>(200'000), block = std::vector<float>(30),
                     moving = std::vector<float>(77);
  std::int64_t steps = 41;
  State() {
    std::iota(wide.begin(), wide.end(), 1.0f);
    std::iota(block.begin(), block.end(), 0.0f);
    std::iota(moving.begin(), moving.end(), 5000.0f);
  }
  SnapshotSources sources() {
    const std::int64_t count = std::ssize(wide);
    return {.still = {{"wide", DType::f32, {2 * count}, 1000, count, wide.data()},
                      {.name = "block",
                       .dtype = DType::f32,
                       .shape = {5, 6},
                       .begin = 2,
                       .count = 3,
                       .data = block.data() + 2,
                       .rows = 5,
                       .stride = 6,
                       .pitch = 6}},
            .moving = {{"moving", DType::f32, {77}, 0, 77, moving.data()}},
            .host = {{"steps", DType::i64, {1}, 0, 1, &steps}}};
  }
  void overwrite() {
    std::ranges::fill(wide, -1.0f), std::ranges::fill(block, -1.0f), std::ranges::fill(moving, -1.0f);
    steps = -1;
  }
};

const TensorSlice& named(const std::vector<TensorSlice>& slices, const std::string& name) {
  return *std::ranges::find(slices, name, &TensorSlice::name);
}

void expect_as_made(const std::vector<TensorSlice>& taken) {
  ASSERT_EQ(taken.size(), 4u);
  const State made;
  EXPECT_EQ(std::memcmp(named(taken, "wide").data, made.wide.data(), made.wide.size() * 4), 0);
  EXPECT_EQ(std::memcmp(named(taken, "moving").data, made.moving.data(), made.moving.size() * 4), 0);
  EXPECT_EQ(*static_cast<const std::int64_t*>(named(taken, "steps").data), 41);
  const TensorSlice& block = named(taken, "block");
  ASSERT_TRUE(block.dense());
  for (int i = 0; i < 15; ++i)
    EXPECT_EQ(static_cast<const float*>(block.data)[i], static_cast<float>(i / 3 * 6 + 2 + i % 3));
}

TEST(HostSnapshot, HoldsWhatWasThereWhateverComesLater) {
  for (const bool worker : {false, true}) {
    const auto device = make_cpu_device({.threads = 1, .compute_worker = worker});
    Arena arena(*device);
    State state;
    HostSnapshot snapshot(arena, "state/snapshot", state.sources());
    const auto first = snapshot.take(state.sources());
    snapshot.wait();
    state.overwrite();
    expect_as_made(first);
    state = State();
    const auto second = snapshot.take(state.sources());
    snapshot.wait();
    expect_as_made(second);
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].data, second[i].data) << "one memory";
  }
}

TEST(HostSnapshot, AStreamThatWasFencedWritesOnlyWhenTheCopyIsMade) {
  const auto device = make_cpu_device({.threads = 1, .compute_worker = true});
  Arena arena(*device);
  State state;
  HostSnapshot snapshot(arena, "state/snapshot", state.sources());
  const auto compute = device->make_stream({.name = "compute"});
  for (int round = 0; round < 200; ++round) {
    state = State();
    const auto taken = snapshot.take(state.sources());
    // Moving slices are copied when take() returns.
    std::ranges::fill(state.moving, -1.0f);
    state.steps = -1;
    snapshot.fence(*compute);
    cpu::enqueue(*compute, [&] { state.overwrite(); });
    compute->synchronize();
    snapshot.wait();
    expect_as_made(taken);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HostSnapshot, LargeRunsLieBehindPagesAsInTheirFile) {
  const auto device = make_cpu_device({.threads = 1});
  Arena arena(*device);
  State state;
  HostSnapshot snapshot(arena, "state/snapshot", state.sources());
  const auto taken = snapshot.take(state.sources());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(named(taken, "wide").data) % 4096, 1000 * 4 % 4096);
}

TEST(HostSnapshot, ItsMemoryIsInThePlan) {
  State state;
  const auto sources = state.sources();
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto dry = make_dry_device({.stands_for = kind});
    Arena arena(*dry);
    const HostSnapshot snapshot(arena, "state/snapshot", sources);
    const MemoryKind where = kind == DeviceKind::cpu ? MemoryKind::device : MemoryKind::pinned;
    EXPECT_GE(arena.bytes(where), 200'000u * 4 + 77 * 4 + 15 * 4 + 8);
    EXPECT_LE(arena.bytes(where), 200'000u * 4 + 4 * 4096);
    EXPECT_EQ(arena.bytes(kind == DeviceKind::cpu ? MemoryKind::pinned : MemoryKind::device), 0u);
  }
}

}  // namespace
}  // namespace octet::host_snapshot_test
