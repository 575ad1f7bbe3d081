// A collective without progress: when it counts as stuck, and what the error names.
#include "messages/hang_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "messages/local_transport.h"
#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::comm::hang_watch_test {
namespace {

/// A rank without others. Its query is answered at once.
class OfOneRank : public testing::Test {
 protected:
  OfOneRank() {
    operation_.what = "all_gather 'block 3'";
    operation_.bytes = 640;
    operation_.call.transport = &transport_;
    operation_.call.lane = &lane_;
    operation_.call.sequence = 5;
    operation_.traced = watch_.traces().posted({.name = "block 3", .queue = "gather"});
  }
  static Lane lane(Queue queue) {
    return {.queue = queue, .name = name_of(queue), .place = {.rank = 0, .size = 1}, .ranks = {0}};
  }
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
  /// Returns the error of a poll without progress, or "".
  std::string error() {
    try {
      watch_.waits(operation_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      return error.what();
    }
    return "";
  }
  /// Polls until all ranks have answered that they take part. The collective then gets the timeout again.
  void poll_until_all_came() {
    wait();
    EXPECT_EQ(error(), "");  // the query
    EXPECT_EQ(error(), "");  // the answers
    EXPECT_TRUE(operation_.all_came);
  }

  SelfTransport transport_;
  Lane roll_ = lane(Queue::roll), lane_ = lane(Queue::gather);
  HangWatch watch_{transport_, roll_};
  Operation operation_;
};

TEST_F(OfOneRank, AStuckCollectiveIsNamedAfterTheTimeoutHasPassedTwice) {
  watch_.set({.timeout_seconds = 1e-3});
  watch_.began(operation_);
  poll_until_all_came();
  wait();
  EXPECT_EQ(error(), "");
  const std::string message = error();
  for (const char* const part : {"all_gather 'block 3'", "it does not finish on rank 0",
                                 "640 bytes, queue gather, number 5", "within ddp_timeout"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
}

TEST_F(OfOneRank, ProgressBeginsTheTimeoutAgain) {
  watch_.set({.timeout_seconds = 1e-3});
  watch_.began(operation_);
  poll_until_all_came();
  watch_.moved(operation_, false);
  EXPECT_FALSE(operation_.all_came);
  poll_until_all_came();
}

TEST_F(OfOneRank, NothingIsStuckWithoutATimeoutOrBeforeIt) {
  for (const double seconds : {0.0, 3600.0}) {
    watch_.set({.timeout_seconds = seconds});
    watch_.began(operation_);
    wait();
    for (int poll = 0; poll < 4; ++poll) EXPECT_EQ(error(), "");
    EXPECT_FALSE(operation_.all_came);
  }
}

TEST_F(OfOneRank, TheTraceHasTheTimesOfACollective) {
  const auto row = [&] { return parse_json(watch_.traces().to_json(), "trace").at(0); };
  EXPECT_TRUE(row().at("begun").is_null());
  watch_.began(operation_);
  EXPECT_FALSE(row().at("begun").is_null());
  watch_.moved(operation_, false);
  EXPECT_TRUE(row().at("done").is_null());
  watch_.moved(operation_, true);
  EXPECT_GE(row().at("done").get<double>(), row().at("begun").get<double>());
}

}  // namespace
}  // namespace octet::comm::hang_watch_test
