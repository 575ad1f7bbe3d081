// A single rank without MPI.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/claims.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm::self_test {
namespace {

TEST(LoneRank, KeepsEveryClaimOfRanks) {
  const auto device = make_cpu_device();
  const auto job = make_self_job();
  const auto self = job->collectives({.name = "world", .ranks = {0}}, *device, Carrier::automatic);
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->size(), 1);
  EXPECT_EQ(self->place().nodes, 1);
  EXPECT_FALSE(self->place().host.empty());
  expect_sums_in_rank_order(*self);
  expect_sums_in_a_given_order(*self);
  expect_sums_of_several_addends(*self);
  expect_messages(*self);
  expect_all_to_all(*self);
  expect_all_gather(*self);
  expect_all_reduce(*self);
  expect_queues_to_be_independent(*self);
  expect_events_to_order_collectives(*self, *device);
  expect_control_plane(self->channel());
  expect_control_plane(*job);
  expect_control_plane(*job->channel("another"));
  expect_errors_to_be_agreed_upon(self->channel());
  expect_traffic_to_be_counted(*self);
}

TEST(LoneRank, WorksBesideAComputeWorker) {
  const auto device = make_cpu_device({.compute_worker = true});
  const auto job = make_self_job();
  const auto self = job->collectives({.name = "world", .ranks = {0}}, *device, Carrier::automatic);
  expect_events_to_order_collectives(*self, *device);
  expect_sums_in_rank_order(*self);
}

TEST(LoneRank, DoesNothingOnADryDevice) {
  const auto device = make_dry_device();
  const auto job = make_self_job();
  const auto self = job->collectives({.name = "world", .ranks = {0}}, *device, Carrier::automatic);
  // Addresses of a dry device must not be accessed.
  auto* nowhere = static_cast<float*>(device->allocate(1 << 20));
  self->reduce_scatter(self->reduce_stream(),
                       {.from = nowhere, .to = nowhere, .count = 1 << 18, .accumulate = true});
  self->all_gather(self->gather_stream(), {.buffer = nowhere, .bytes = 1 << 20});
  self->all_reduce_max(self->reduce_stream(), "amax", nowhere, 1 << 18);
  self->reduce_stream().synchronize();
  EXPECT_EQ(self->channel().all_sum(3), 3);
  device->release(nowhere, 1 << 20);
}

TEST(StagingBytes, AreBoundedAtEveryWorldSize) {
  EXPECT_EQ(staging_bytes(1, DeviceKind::cpu), 0u);
  for (const int size : {2, 3, 8, 32, 64, 1000}) {
    EXPECT_GT(staging_bytes(size, DeviceKind::cpu), std::size_t{1} << 20);
    // Many ranks need more, so that their messages do not get short.
    EXPECT_LT(staging_bytes(size, DeviceKind::cpu), static_cast<std::size_t>(std::max(size, 60)) * 400 << 10);
  }
}

TEST(Launcher, IsKnownByItsEnvironment) {
  // The tests themselves run without a launcher.
  EXPECT_FALSE(launched_by_mpi());
  setenv("PMIX_RANK", "0", 1);
  EXPECT_TRUE(launched_by_mpi());
  unsetenv("PMIX_RANK");
}

}  // namespace
}  // namespace octet::comm::self_test
