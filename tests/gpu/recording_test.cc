// Replay of recorded GPU work.
#include "octet/device/device.h"

#include <gtest/gtest.h>

#include <vector>

#include "octet/device/profile.h"
#include "octet/ops/elementwise.h"

namespace octet::recording_test {
namespace {

class GpuRecording : public testing::Test {
 protected:
  static constexpr std::int64_t kCount = 1000;
  /// y += x, with x copied from the host, and y copied to the host.
  void enqueue() {
    const std::size_t bytes = kCount * sizeof(float);
    device->copy_to_device(*stream, x, host_x, bytes);
    ops::add(*stream, x, DType::f32, y, kCount);
    device->copy_to_host(*stream, host_y, y, bytes);
  }
  float run(Recording& recording, float value) {
    for (std::int64_t i = 0; i < kCount; ++i) host_x[i] = value;
    recording.replay();
    stream->synchronize();
    EXPECT_EQ(host_y[0], host_y[kCount - 1]);
    return host_y[0];
  }

  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<Stream> stream = device->make_stream({.name = "test"});
  Arena arena{*device};
  float* x = arena.reserve_as<float>("x", kCount);
  float* y = arena.reserve_as<float>("y", kCount);
  float* host_x = arena.reserve_as<float>("x", kCount, MemoryKind::pinned);
  float* host_y = arena.reserve_as<float>("y", kCount, MemoryKind::pinned);
};

TEST_F(GpuRecording, IsDoneWhenItIsReplayedWithWhatLiesThereThen) {
  ASSERT_TRUE(can_record(*stream));
  enqueue();
  stream->synchronize();
  EXPECT_EQ(host_y[0], 0);
  for (std::int64_t i = 0; i < kCount; ++i) host_x[i] = 5;
  const auto recording = record(*stream, [this] { enqueue(); });
  ASSERT_NE(recording, nullptr);
  stream->synchronize();
  EXPECT_EQ(host_y[0], 0) << "recording does nothing";
  EXPECT_EQ(run(*recording, 2), 2);
  EXPECT_EQ(run(*recording, 3), 5);
  EXPECT_EQ(run(*recording, -1), 4);
}

TEST_F(GpuRecording, WorkThatWaitsIsNotRecordedAndTheStreamGoesOn) {
  EXPECT_EQ(record(*stream,
                   [this] {
                     enqueue();
                     stream->synchronize();
                   }),
            nullptr);
  for (std::int64_t i = 0; i < kCount; ++i) host_x[i] = 7;
  enqueue();
  stream->synchronize();
  EXPECT_EQ(host_y[0], 7);
  EXPECT_NE(record(*stream, [this] { enqueue(); }), nullptr);
  EXPECT_THROW(record(*stream, [] { throw std::runtime_error("another failure"); }), std::runtime_error);
  EXPECT_NE(record(*stream, [this] { enqueue(); }), nullptr);
}

TEST_F(GpuRecording, AStreamWhoseTimeIsTakenIsNotRecorded) {
  const Profile profile(*stream);
  EXPECT_FALSE(can_record(*stream));
  EXPECT_EQ(record(*stream, [] { FAIL() << "nothing is enqueued"; }), nullptr);
}

}  // namespace
}  // namespace octet::recording_test
