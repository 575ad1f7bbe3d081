// The GPU as a device: memory, streams, events, collectives of a single rank, and state in host memory.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/cuda.h"
#include "octet/device/device.h"
#include "octet/device/host_copies.h"
#include "octet/ops/elementwise.h"

namespace octet::device_test {
namespace {

TEST(CudaDevice, GivesZeroedMemoryAndRefusesWhatItDoesNotHave) {
  const auto device = make_cuda_device(0);
  EXPECT_EQ(device->kind(), DeviceKind::cuda);
  EXPECT_GE(cuda::properties(*device).compute_capability, 90);
  const auto stream = device->make_stream({.name = "test"});
  for (int round = 0; round < 2; ++round) {  // the second round reuses the memory of the first
    Arena arena(*device);
    constexpr std::size_t bytes = 3 << 20;
    void* memory = arena.reserve("x", bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
    std::vector<unsigned char> seen(bytes, 1);
    device->copy_to_host(*stream, seen.data(), memory, bytes);
    stream->synchronize();
    for (const unsigned char byte : seen) ASSERT_EQ(byte, 0);
    ops::fill(*stream, static_cast<float*>(memory), 3.0f, bytes / 4);
    stream->synchronize();
  }
  const MemoryInfo memory = device->memory();
  EXPECT_GT(memory.free, 0u);
  EXPECT_LE(memory.free, memory.total);
  Arena arena(*device);
  EXPECT_THROW(arena.reserve("too much", memory.total + memory.total / 2), Error);
  EXPECT_NE(arena.reserve("after a refusal", 256), nullptr);
}

// The driver allocates small sizes. Large sizes are mapped and pinned by this project.
TEST(CudaDevice, HostMemoryThatItReadsIsZeroedAndGivenBackHoweverMuchThereIs) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream({.name = "test"});
  for (const std::size_t bytes :
       {std::size_t{4096}, (std::size_t{64} << 20) - 1, (std::size_t{200} << 20) + 5}) {
    for (int round = 0; round < 2; ++round) {
      Arena arena(*device);
      auto* const there = arena.reserve_as<unsigned char>("x", bytes);
      auto* const here = arena.reserve_as<unsigned char>("x", bytes, MemoryKind::pinned);
      EXPECT_EQ(std::accumulate(here, here + bytes, 0), 0);
      for (std::size_t i = 0; i < bytes; ++i) here[i] = static_cast<unsigned char>(i % 251);
      device->copy_to_device(*stream, there, here, bytes);
      stream->synchronize();
      std::memset(here, 0, bytes);
      device->copy_to_host(*stream, here, there, bytes);
      stream->synchronize();
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(here[i], i % 251) << i << " of " << bytes;
    }
  }
}

TEST(CudaDevice, StreamsWaitForEventsOfOthers) {
  const auto device = make_cuda_device(0);
  const auto a = device->make_stream({.name = "a"}), b = device->make_stream({.name = "b"});
  const auto ready = device->make_event(), never = device->make_event();
  Arena arena(*device);
  constexpr std::int64_t n = 1 << 24;
  auto* x = arena.reserve_as<float>("x", n);
  auto* y = arena.reserve_as<float>("y", n);
  a->wait(*never);
  for (int i = 1; i <= 20; ++i) {
    for (int k = 0; k < 10; ++k) ops::fill(*a, x, static_cast<float>(i), n);
    a->record(*ready);
    b->wait(*ready);
    device->copy(*b, y, x, n * sizeof(float));
    float last = 0;
    device->copy_to_host(*b, &last, y + n - 1, sizeof last);
    b->synchronize();
    ASSERT_EQ(last, static_cast<float>(i));
  }
}

// Measures the time that a stream waits for another stream. Waits for a background stream are not measured,
// because it computes and does not communicate.
TEST(CudaDevice, WaitsForOthersAreMeasuredAndThoseForBackgroundWorkAreNot) {
  const auto device = make_cuda_device(0);
  Arena arena(*device);
  constexpr std::int64_t n = 1 << 28;
  auto* x = arena.reserve_as<float>("x", n);
  const auto wait_for = [&](bool background, bool measured) {
    const auto other = device->make_stream({.name = "other", .background = background});
    const auto compute = device->make_stream({.name = "compute"});
    if (measured) measure_waits(*compute);
    const auto done = device->make_event(), begun = device->make_timed_event(),
               ended = device->make_timed_event();
    other->record(*begun);
    for (int k = 0; k < 100; ++k) ops::fill(*other, x, static_cast<float>(k), n);
    other->record(*ended);
    other->record(*done);
    compute->wait(*done);
    compute->synchronize();
    return std::pair(seconds_waited(*compute), device->seconds_between(*begun, *ended));
  };
  const auto [waited, worked] = wait_for(false, true);
  EXPECT_GT(worked, 0.005);
  EXPECT_NEAR(waited, worked, 0.2 * worked);
  EXPECT_EQ(wait_for(true, true).first, 0);
  EXPECT_EQ(wait_for(false, false).first, 0);
}

TEST(CudaDevice, ALoneRanksCollectivesAreCopiesAndSums) {
  const auto device = make_cuda_device(0);
  const auto job = comm::make_self_job();
  const auto self = job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  Arena arena(*device);
  auto* from = arena.reserve_as<float>("from", 1000);
  auto* to = arena.reserve_as<float>("to", 1000);
  Stream& stream = self->reduce_stream();
  ops::fill(stream, from, 2.0f, 1000);
  ops::fill(stream, to, 0.5f, 1000);
  self->reduce_scatter(stream, {.from = from, .to = to, .count = 1000, .accumulate = true});
  self->all_reduce_max(stream, "max", to, 1000);
  self->all_gather(stream, {.buffer = to, .bytes = 4000});
  std::vector<float> seen(1000);
  device->copy_to_host(stream, seen.data(), to, 4000);
  stream.synchronize();
  for (const float value : seen) ASSERT_EQ(value, 2.5f);
}

TEST(HostMirror, ShowsDeviceMemoryAndWritesItBack) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream({.name = "test"});
  Arena arena(*device);
  auto* x = arena.reserve_as<float>("x", 1000);
  ops::fill(*stream, x, 4.0f, 1000);
  stream->synchronize();
  HostMirror mirror(*device);
  const std::vector<TensorSlice> slices = {
      {.name = "a", .dtype = DType::f32, .shape = {1000}, .begin = 0, .count = 10, .data = x},
      {.name = "b", .dtype = DType::f32, .shape = {1000}, .begin = 10, .count = 990, .data = x + 10}};
  auto seen = mirror.fetch(slices);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(static_cast<float*>(seen[1].data)[989], 4.0f);
  static_cast<float*>(seen[0].data)[3] = 9.0f;
  mirror.send();
  EXPECT_TRUE(mirror.empty());
  seen = mirror.fetch(slices);
  EXPECT_EQ(static_cast<float*>(seen[0].data)[3], 9.0f);
  EXPECT_EQ(static_cast<float*>(seen[1].data)[0], 4.0f);
}

}  // namespace
}  // namespace octet::device_test
