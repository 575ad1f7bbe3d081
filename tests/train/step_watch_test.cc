// Message times of a step on a link of known speed.
#include "../src/train/logs/step_report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::train::step_watch_test {
namespace {

constexpr std::int64_t count = 50000;
constexpr double link = 1e6, takes = count * 4 / link;  // 0.2 s

/// A rank that computes, and sends `count` values over the link when the test body calls it.
struct Sender {
  Sender(comm::Collectives& collectives, Device& device)
      : c(collectives),
        compute(device.make_stream({.name = "compute"})),
        reduced(device.make_event()),
        values(2 * count, 1.0f),
        sum(count) {}
  void send() {
    c.reduce_scatter(c.reduce_stream(), {.from = values.data(), .to = sum.data(), .count = count});
    c.reduce_stream().record(*reduced);
  }
  void wait() {
    compute->wait(*reduced);
    compute->synchronize();
  }
  comm::Collectives& c;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Event> reduced;
  std::vector<float> values, sum;
};

TEST(StepWatch, TakesWhatWasWaitedForFromOneStepToTheNext) {
  const comm::ThreadRanksOptions two{.ranks = 2, .bytes_per_second = link};
  comm::run_ranks_as_threads(two, [](comm::Job& job, comm::Collectives& c, Device& device) {
    Sender sender(c, device);
    job.barrier();
    for (int before = 0; before < 3; ++before) {  // belongs to no step
      sender.send();
      sender.wait();
    }
    job.barrier();
    StepWatch watch([&c] { return c.seconds_busy(); }, *sender.compute);
    sender.send();
    sender.wait();
    const MessageTime exposed = watch.take();
    EXPECT_GE(exposed.under_way, takes);
    EXPECT_LT(exposed.under_way, 3 * takes) << "of one step";
    EXPECT_GT(exposed.exposed, 0.5 * takes);
    EXPECT_LE(exposed.exposed, exposed.under_way);
    sender.send();
    std::this_thread::sleep_for(std::chrono::duration<double>(3 * takes));
    sender.wait();
    const MessageTime hidden = watch.take();
    EXPECT_GE(hidden.under_way, takes);
    EXPECT_LT(hidden.exposed, 0.5 * takes);
    const MessageTime nothing = watch.take();
    EXPECT_EQ(nothing.under_way, 0);
    EXPECT_EQ(nothing.exposed, 0);
  });
}

TEST(StepWatch, WaitingForOtherThanMessagesIsNotTheirs) {
  comm::run_ranks_as_threads({.ranks = 2}, [](comm::Job&, comm::Collectives& c, Device& device) {
    const auto compute = device.make_stream({.name = "compute"});
    const auto other = device.make_stream({.name = "other", .mode = StreamOptions::Mode::worker});
    const auto computed = device.make_event();
    StepWatch watch([&c] { return c.seconds_busy(); }, *compute);
    const double before = seconds_waited(*compute);
    cpu::enqueue(*other, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    other->record(*computed);
    compute->wait(*computed);
    compute->synchronize();
    EXPECT_GT(seconds_waited(*compute) - before, 0.03);
    const MessageTime time = watch.take();
    EXPECT_EQ(time.under_way, 0);
    EXPECT_EQ(time.exposed, 0);
  });
}

}  // namespace
}  // namespace octet::train::step_watch_test
