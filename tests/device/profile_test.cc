#include "octet/device/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "octet/device/cpu.h"

namespace octet::profile_test {
namespace {

void work(Stream& stream, int milliseconds) {
  cpu::enqueue(stream,
               [milliseconds] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

// In the caller and on a worker: the profile measures the work, not its enqueueing.
TEST(Profile, TakesTheTimeOfWorkByItsName) {
  for (const bool worker : {false, true}) {
    const auto device = make_cpu_device({.threads = 1, .compute_worker = worker});
    const auto stream = device->make_stream({.name = "test"});
    Profile profile(*stream);
    work(*stream, 5);  // outside of all sections
    for (int i = 0; i < 2; ++i) {
      const ProfileLabel label(*stream, "outer");
      const ProfileSection section(*stream, "long");
      const ProfileSection inside(*stream, "counts for the outermost");
      work(*stream, 20);
    }
    {
      const ProfileSection section(*stream, "short");
      work(*stream, 2);
    }
    stream->synchronize();
    auto rows = profile.collect();
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows["outer/long"].calls, 2);
    EXPECT_GE(rows["outer/long"].seconds, 0.040);
    EXPECT_EQ(rows["short"].calls, 1);
    EXPECT_GE(rows["short"].seconds, 0.002);
    EXPECT_LT(rows["short"].seconds, rows["outer/long"].seconds);
    EXPECT_TRUE(profile.collect().empty());
  }
}

TEST(Profile, EndsWithItsObject) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  EXPECT_EQ(stream->profile(), nullptr);
  {
    Profile profile(*stream);
    EXPECT_EQ(stream->profile(), &profile);
    EXPECT_THROW(Profile second(*stream), std::logic_error);
  }
  EXPECT_EQ(stream->profile(), nullptr);
  const ProfileSection section(*stream, "nobody asks");
}

TEST(Profile, NothingHappensOnTheDryDevice) {
  const auto device = make_dry_device();
  const auto stream = device->make_stream({.name = "test"});
  Profile profile(*stream);
  { const ProfileSection section(*stream, "op"); }
  EXPECT_EQ(profile.collect().at("op").seconds, 0);
}

}  // namespace
}  // namespace octet::profile_test
