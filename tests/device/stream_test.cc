#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::stream_test {
namespace {

using Mode = StreamOptions::Mode;

/// A thread that serves one stream until it goes out of scope.
class Server {
 public:
  explicit Server(Stream& stream)
      : thread_([this, &stream] {
          while (!stop_) {
            if (!cpu::serve(stream)) std::this_thread::yield();
          }
        }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// A stream of a mode, with a server if the mode needs one.
struct Running {
  Running(Device& device, Mode mode) : stream(device.make_stream({.name = "tested", .mode = mode})) {
    if (mode == Mode::served) server = std::make_unique<Server>(*stream);
  }
  ~Running() { server.reset(); }
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Server> server;
};

class EveryMode : public testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
};
INSTANTIATE_TEST_SUITE_P(Stream, EveryMode, testing::Values(Mode::in_line, Mode::worker, Mode::served));

TEST_P(EveryMode, WorkRunsInTheOrderOfEnqueuing) {
  Running running(*device, GetParam());
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) cpu::enqueue(*running.stream, [&order, i] { order.push_back(i); });
  running.stream->synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(EveryMode, AWaitHoldsLaterWorkUntilTheRecordIsReached) {
  Running running(*device, GetParam());
  const auto other = device->make_stream({.name = "other", .mode = Mode::worker});
  const auto event = device->make_event();
  for (int round = 1; round <= 20; ++round) {
    int value = 0, seen = -1;
    cpu::enqueue(*other, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      value = round;
    });
    other->record(*event);
    running.stream->wait(*event);
    cpu::enqueue(*running.stream, [&] { seen = value; });
    running.stream->synchronize();
    EXPECT_EQ(seen, round);
  }
}

TEST_P(EveryMode, ARecordIsSeenByOtherStreams) {
  Running running(*device, GetParam());
  const auto other = device->make_stream({.name = "other", .mode = Mode::worker});
  const auto event = device->make_event();
  int value = 0, seen = -1;
  cpu::enqueue(*running.stream, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    value = 7;
  });
  running.stream->record(*event);
  other->wait(*event);
  cpu::enqueue(*other, [&] { seen = value; });
  other->synchronize();
  EXPECT_EQ(seen, 7);
}

TEST_P(EveryMode, WhatWorkThrowsIsKeptForSynchronizeAndStopsLaterWork) {
  Running running(*device, GetParam());
  bool later = false;
  cpu::enqueue(*running.stream, [] { throw Error("the disk is full"); });
  cpu::enqueue(*running.stream, [&] { later = true; });
  EXPECT_THROW(running.stream->synchronize(), Error);
  EXPECT_FALSE(later);
  EXPECT_THROW(running.stream->synchronize(), Error) << "a broken stream stays broken";
}

TEST_P(EveryMode, WhoWaitsForABrokenStreamInheritsItsError) {
  Running running(*device, GetParam());
  const auto other = device->make_stream({.name = "other", .mode = Mode::worker});
  const auto event = device->make_event();
  bool later = false;
  cpu::enqueue(*other, [] { throw std::runtime_error("lost a peer"); });
  other->record(*event);
  running.stream->wait(*event);
  cpu::enqueue(*running.stream, [&] { later = true; });
  EXPECT_THROW(running.stream->synchronize(), std::runtime_error);
  EXPECT_FALSE(later);
}

TEST_P(EveryMode, AnEventThatWasNeverRecordedIsComplete) {
  Running running(*device, GetParam());
  const auto event = device->make_event();
  running.stream->wait(*event);
  running.stream->synchronize();
}

TEST_P(EveryMode, TheEventMayBeDestroyedBeforeTheStreamGetsThere) {
  Running running(*device, GetParam());
  const auto other = device->make_stream({.name = "other", .mode = Mode::worker});
  int value = 0, seen = -1;
  {
    const auto event = device->make_event();
    cpu::enqueue(*other, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      value = 1;
    });
    other->record(*event);
    running.stream->wait(*event);
  }
  cpu::enqueue(*running.stream, [&] { seen = value; });
  running.stream->synchronize();
  EXPECT_EQ(seen, 1);
}

TEST_P(EveryMode, CopiesAndFillsAreEnqueued) {
  Running running(*device, GetParam());
  std::vector<int> host = {1, 2, 3, 4}, back(4);
  Arena arena(*device);
  int* there = arena.reserve_as<int>("there", 4);
  int* second = arena.reserve_as<int>("second", 4);
  device->copy_to_device(*running.stream, there, host.data(), 16);
  device->copy(*running.stream, second, there, 16);
  device->zero(*running.stream, second, 4);
  device->copy_to_host(*running.stream, back.data(), second, 16);
  running.stream->synchronize();
  EXPECT_EQ(back, (std::vector<int>{0, 2, 3, 4}));
}

TEST(Stream, AWaitMeansTheLatestRecordBeforeItAndNotLaterOnes) {
  const auto device = make_cpu_device({.threads = 1});
  const auto first = device->make_stream({.name = "first", .mode = Mode::served});
  const auto second = device->make_stream({.name = "second", .mode = Mode::served});
  const auto waiting = device->make_stream({.name = "waiting", .mode = Mode::served});
  const auto event = device->make_event();
  bool ran = false;
  first->record(*event);
  waiting->wait(*event);
  cpu::enqueue(*waiting, [&] { ran = true; });
  second->record(*event);  // records the event again
  EXPECT_TRUE(cpu::serve(*second));
  cpu::serve(*waiting);
  EXPECT_FALSE(ran) << "the record on 'second' came after the wait";
  EXPECT_TRUE(cpu::serve(*first));
  EXPECT_TRUE(cpu::serve(*waiting));
  EXPECT_TRUE(ran);
}

TEST(Stream, TheTimesOfAllItsWaitsAddUp) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "waits", .mode = Mode::worker});
  const auto other = device->make_stream({.name = "late", .mode = Mode::worker});
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 3; ++round) {
    const auto event = device->make_event();
    cpu::enqueue(*other, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
    other->record(*event);
    stream->wait(*event);
    stream->synchronize();
  }
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // The other stream may have slept a little before this stream begins to wait.
  EXPECT_GE(seconds_waited(*stream), 3 * 0.06 - 0.05);
  EXPECT_LE(seconds_waited(*stream), all);
}

TEST(Stream, ServeNeverBlocksAndResumesWhatIsNotDone) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "comm", .mode = Mode::served});
  const auto other = device->make_stream({.name = "other", .mode = Mode::served});
  const auto event = device->make_event();
  EXPECT_FALSE(cpu::serve(*stream));
  int polls = 0;
  bool after = false;
  cpu::enqueue_resumable(*stream, [&] { return ++polls == 3; });
  other->record(*event);
  stream->wait(*event);
  cpu::enqueue(*stream, [&] { after = true; });
  EXPECT_FALSE(cpu::serve(*stream));
  EXPECT_FALSE(cpu::serve(*stream));
  EXPECT_TRUE(cpu::serve(*stream)) << "the third poll completes it";
  EXPECT_EQ(polls, 3);
  EXPECT_FALSE(after) << "the event is not reached";
  EXPECT_FALSE(cpu::serve(*stream));
  cpu::serve(*other);
  EXPECT_TRUE(cpu::serve(*stream));
  EXPECT_TRUE(after);
}

TEST(Stream, OnlyServedStreamsAreServed) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  EXPECT_THROW(cpu::serve(*stream), std::logic_error);
}

TEST(Stream, WaitingForAServedStreamTakesNoProcessorTime) {
  const auto device = make_cpu_device({.threads = 1});
  const auto compute = device->make_stream({.name = "compute"});
  const auto comm = device->make_stream({.name = "comm", .mode = Mode::served});
  const auto event = device->make_event();
  comm->record(*event);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cpu::serve(*comm);
  });
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  compute->wait(*event);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  late.join();
  const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                         1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(seconds, 0.05);
}

TEST(Stream, AServedStreamThatEndsEarlyFailsThoseWhoWait) {
  const auto device = make_cpu_device({.threads = 1});
  const auto compute = device->make_stream({.name = "compute", .mode = Mode::worker});
  auto comm = device->make_stream({.name = "comm", .mode = Mode::served});
  const auto event = device->make_event();
  cpu::enqueue(*comm, [] {});
  comm->record(*event);
  compute->wait(*event);
  comm.reset();
  EXPECT_THROW(compute->synchronize(), Error);
}

TEST(Stream, AWorkerRunsElsewhereAndFinishesItsWorkBeforeItEnds) {
  const auto device = make_cpu_device({.threads = 1, .compute_worker = true});
  auto stream = device->make_stream({.name = "compute"});
  std::thread::id where = std::this_thread::get_id();
  int done = 0;
  cpu::enqueue(*stream, [&] { where = std::this_thread::get_id(); });
  for (int i = 0; i < 50; ++i) cpu::enqueue(*stream, [&] { ++done; });
  stream.reset();
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(done, 50);
}

TEST(Stream, AWorkerUsesTheThreadCountOfWhoEnqueues) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ops run on one thread under the thread sanitizer";
#endif
  const auto device = make_cpu_device({.threads = 2, .compute_worker = true});
  const auto stream = device->make_stream({.name = "compute"});
  EXPECT_EQ(cpu::op_threads(), 2);
  int first = 0, second = 0;
  cpu::enqueue(*stream, [&] { first = cpu::op_threads(); });
  cpu::set_op_threads(3);
  cpu::enqueue(*stream, [&] { second = cpu::op_threads(); });
  stream->synchronize();
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 3);
}

TEST(Stream, TheHostWaitsForAnEventAndNotForWhatIsBehindIt) {
  const auto device = make_cpu_device({.threads = 1, .compute_worker = true});
  const auto stream = device->make_stream({.name = "compute"});
  const auto event = device->make_event();
  wait_for(*device, *event);  // never recorded
  std::atomic<bool> goes_on{false}, behind{false};
  int value = 0;
  cpu::enqueue(*stream, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 7;
  });
  stream->record(*event);
  cpu::enqueue(*stream, [&] {
    while (!goes_on) std::this_thread::yield();
    behind = true;
  });
  wait_for(*device, *event);
  EXPECT_EQ(value, 7);
  EXPECT_FALSE(behind);
  goes_on = true;
  cpu::enqueue(*stream, [] { throw std::runtime_error("broken"); });
  stream->record(*event);
  EXPECT_THROW(wait_for(*device, *event), std::runtime_error);
  const auto dry = make_dry_device();
  wait_for(*dry, *dry->make_event());
}

TEST(Stream, EventsAndStreamsOfDifferentDevicesDoNotMix) {
  const auto device = make_cpu_device({.threads = 1});
  const auto dry = make_dry_device();
  const auto stream = device->make_stream({.name = "compute"});
  const auto event = dry->make_event();
  EXPECT_THROW(stream->record(*event), std::logic_error);
  const auto dry_stream = dry->make_stream({.name = "compute"});
  EXPECT_THROW(cpu::enqueue(*dry_stream, [] {}), std::logic_error);
}

}  // namespace
}  // namespace octet::stream_test
