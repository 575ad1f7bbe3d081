// A collective in rounds that does not end: the error names the ranks that block it, not their partners.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/counted_ranks.h"
#include "messages/hang_watch.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/timing.h"

namespace octet::comm::lost_message_test {
namespace {

/// Eight ranks that exchange numbers, each with its watch.
class EightRanks {
 public:
  EightRanks() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      all_.push_back(std::make_unique<One>(ranks_.transport(rank)));
      all_.back()->begin(std::to_string(rank));
    }
  }
  void lose_message(int from, int to) { ranks_.lose_message(from, to); }
  /// The rank takes part after so many seconds.
  void delay(int rank, double seconds) { all_[static_cast<std::size_t>(rank)]->starts_after = seconds; }
  /// The rank takes part at once, but its first message leaves after so many seconds.
  void delay_messages(int rank, double seconds) {
    all_[static_cast<std::size_t>(rank)]->sends_after = seconds;
  }

  /// Returns the first error, or "" if the collective ends on all ranks.
  std::string outcome() {
    const auto begin = Clock::now();
    try {
      for (bool done = false; !done;) {
        done = true;
        for (const auto& one : all_) done = one->poll(seconds_since(begin)) && done;
        if (seconds_since(begin) > 20) return "no error within 20 s";
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      return error.what();
    }
    return "";
  }

 private:
  struct One {
    explicit One(Transport& transport)
        : lane(lane_of(transport, 0, Queue::control)),
          roll(lane_of(transport, 1, Queue::roll)),
          watch(transport, roll) {
      watch.set({.timeout_seconds = 0.3});
      operation.what = "control 'numbers'";
      operation.call.transport = &transport;
      operation.call.lane = &lane;
      operation.call.tag = tag_of(Kind::control, 0);
    }
    static Lane lane_of(Transport& transport, int id, Queue queue) {
      const Place& place = transport.place();
      return {
          .id = id, .queue = queue, .name = name_of(queue), .place = place, .ranks = all_ranks(place.size)};
    }
    void begin(const std::string& text) {
      operation.steps = all_gather_bytes_steps(operation.call, text, &texts);
    }
    bool poll(double seconds) {
      watch.serve();
      if (done || seconds < starts_after) return done;
      if (!operation.moved) watch.began(operation);
      if (seconds < sends_after) return false;
      done = operation.steps.resume();
      const std::int64_t completed = operation.call.completed;
      if (done || std::exchange(operation.seen, completed) != completed) {
        watch.moved(operation, done);
      } else {
        watch.waits(operation);
      }
      return done;
    }

    Lane lane, roll;
    HangWatch watch;
    Operation operation;
    std::vector<std::string> texts;
    double starts_after = 0, sends_after = 0;
    bool done = false;
  };

  CountedRanks ranks_{8};
  std::vector<std::unique_ptr<One>> all_;
};

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
}

TEST(LostMessage, ARankThatDoesNotComeIsNamedNotItsPartners) {
  EightRanks ranks;
  ranks.delay(5, 1000);
  expect_says(ranks.outcome(), "nothing from rank 5 (rank 5 answers: it waits in no collective)");
}

TEST(LostMessage, BothEndsOfALostMessageAreNamed) {
  EightRanks ranks;
  ranks.lose_message(5, 4);
  const std::string message = ranks.outcome();
  expect_says(message, "all ranks take part, but messages are missing from ranks 4, 5");
  expect_says(message, "control 'numbers'");
}

TEST(LostMessage, ARankThatCameDuringTheQueryIsNoError) {
  EightRanks ranks;
  ranks.delay_messages(5, 0.45);  // the others have looked for it, and found it taking part
  EXPECT_EQ(ranks.outcome(), "");
}

}  // namespace
}  // namespace octet::comm::lost_message_test
