// Saves concurrent with steps: log messages, counts, and threads that end early.
#include "../src/train/saves/saver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <numeric>
#include <thread>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/comm/thread_ranks.h"
#include "support/program.h"
#include "support/threads.h"

namespace octet::train::saver_test {
namespace {

using test::TemporaryFolder;

constexpr std::int64_t kEach = 1000;  ///< elements per rank

/// A rank's half of a vector with the values from `step` x 1e4.
struct Part {
  explicit Part(std::int64_t step) : values(kEach) { std::iota(values.begin(), values.end(), step * 1e4f); }
  checkpoint::CheckpointContents contents(const comm::Channel& channel, std::int64_t step) {
    return {.step = step,
            .slices = {{.name = "w",
                        .dtype = DType::f32,
                        .shape = {kEach * channel.size()},
                        .begin = kEach * channel.rank(),
                        .count = kEach,
                        .data = values.data()}},
            .direct = true,
            .state = Json{{"step", step}}};
  }
  std::vector<float> values;
};

void on_ranks(int ranks, const std::function<void(comm::Job&, comm::Channel&)>& body) {
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, Device&) {
    const auto channel = job.channel("checkpoint");
    body(job, *channel);
  });
}

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST(SaveBeside, IsThereWhenItEndsAndNotBeforeItsStateIs) {
  const TemporaryFolder folder("beside");
  std::latch copied(1);
  on_ranks(2, [&](comm::Job& job, comm::Channel& channel) {
    Saver saver(channel, {.folder = folder.path()}, "");
    EXPECT_FALSE(saver.end(1).has_value()) << "nothing is in flight";
    Part part(3);
    saver.begin({.contents = part.contents(channel, 3), .wait = [&] { copied.wait(); }});
    EXPECT_TRUE(saver.in_flight());
    EXPECT_TRUE(checkpoint::list_checkpoints(folder.path()).empty()) << "the state is not there yet";
    EXPECT_FALSE(saver.asks_to_settle());
    job.barrier();
    if (job.rank() == 0) copied.count_down();
    if (job.rank() == 0) wait_until([&] { return saver.asks_to_settle(); });
    job.barrier();
    std::this_thread::sleep_for(
        std::chrono::milliseconds(50));  // until the thread of the other rank has ended
    EXPECT_EQ(saver.asks_to_settle(), job.rank() == 0) << "one speaks for all";
    const auto ended = saver.end(5);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->step, 3);
    EXPECT_EQ(ended->path, folder / "checkpoint-3");
    EXPECT_FALSE(saver.in_flight());
    EXPECT_FALSE(saver.asks_to_settle());
    EXPECT_EQ(saver.failed_in_a_row(), 0);
  });
  std::vector<float> all(2 * kEach);
  checkpoint::Checkpoint(folder / "checkpoint-3").read("w", 0, 2 * kEach, all.data());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], Part(3).values[i % kEach]);
}

TEST(SaveBeside, LeavesTheCoresToTheSteps) {
  const TemporaryFolder folder("beside_behind");
  on_ranks(1, [&](comm::Job&, comm::Channel& channel) {
    Saver saver(channel, {.folder = folder.path()}, "");
    Part part(3);
    bool behind = false;
    saver.begin(
        {.contents = part.contents(channel, 3), .wait = [&] { behind = test::this_thread_runs_behind(); }});
    saver.end(4);
    EXPECT_TRUE(behind);
    EXPECT_EQ(test::a_thread_runs_behind(), test::this_thread_runs_behind())
        << "computation continues as before";
  });
}

TEST(SaveBeside, KeepsTheBestAndTheNewestThatWereReadBack) {
  const TemporaryFolder folder("beside_keeps");
  on_ranks(2, [&](comm::Job&, comm::Channel& channel) {
    Saver saver(channel, {.folder = folder.path(), .keep_last = 1}, "");
    for (const std::int64_t step : {1, 2, 3, 4}) {
      Part part(step);
      saver.begin({.contents = part.contents(channel, step), .wait = [] {}, .best = step < 2 ? step : 2});
      saver.end(step);
    }
  });
  const auto left = checkpoint::list_checkpoints(folder.path());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].first, 2);
  EXPECT_EQ(left[1].first, 4);
}

TEST(Save, WhereBothPlacesFailBothAreSaid) {
  const TemporaryFolder folder("both_fail");
  ::setenv("OCTETRUN_FAILPOINT", "full_disk", 1);
  for (const char* place : {"one/disk-is-full", "two/disk-is-full"}) test::spill(folder / place, "");
  testing::internal::CaptureStderr();
  on_ranks(2, [&](comm::Job&, comm::Channel& channel) {
    Saver saver(channel,
                {.folder = folder / "one", .fallback = folder / "two", .most_failed = 7, .retry_steps = 10},
                "");
    Part part(1234);
    EXPECT_EQ(saver.save(part.contents(channel, 1234)), "");
    EXPECT_FALSE(saver.retries_at(1243));
    EXPECT_TRUE(saver.retries_at(1244));
    std::filesystem::remove(folder / "two/disk-is-full");
    EXPECT_EQ(saver.save(part.contents(channel, 1244)), folder / "two/checkpoint-1244");
  });
  ::unsetenv("OCTETRUN_FAILPOINT");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the checkpoint of step 1,234 could not be saved (1 in a row; 7 end the run). Training "
                      "continues, and the next attempt follows after step 1,244\n"),
            std::string::npos)
      << said;
  for (const char* place : {"one", "two"}) {
    const std::size_t at = said.find("  where:    " + (folder / place));
    EXPECT_LT(at, said.find("it is in save_fallback_dir: " + (folder / "two/checkpoint-1244"))) << said;
  }
}

// A failure that all ranks agree on is counted from the step at which it is detected.
TEST(SaveBeside, ThatFailsIsCountedAndTriedAgainLater) {
  const TemporaryFolder folder("beside_fails");
  ::setenv("OCTETRUN_FAILPOINT", "full_disk", 1);
  test::spill(folder / "disk-is-full", "");
  on_ranks(2, [&](comm::Job& job, comm::Channel& channel) {
    Saver saver(channel, {.folder = folder.path(), .most_failed = 2, .retry_steps = 10}, "");
    Part part(3);
    saver.begin({.contents = part.contents(channel, 3), .wait = [] {}});
    EXPECT_FALSE(saver.retries_at(100)) << "while it is in flight";
    const auto ended = saver.end(7);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->path, "");
    EXPECT_EQ(saver.failed_in_a_row(), 1);
    EXPECT_FALSE(saver.retries_at(16));
    EXPECT_TRUE(saver.retries_at(17));
    EXPECT_FALSE(saver.gives_up());
    saver.begin({.contents = part.contents(channel, 3), .wait = [] {}});
    saver.end(17);
    EXPECT_TRUE(saver.gives_up());
    job.barrier();
    if (job.rank() == 0) std::filesystem::remove(folder / "disk-is-full");
    job.barrier();
    saver.begin({.contents = part.contents(channel, 3), .wait = [] {}});
    EXPECT_NE(saver.end(27)->path, "");
    EXPECT_EQ(saver.failed_in_a_row(), 0);
  });
  ::unsetenv("OCTETRUN_FAILPOINT");
}

// A copy that fails on one rank ends the run with the message of that rank, once.
TEST(SaveBeside, ACopyThatFailsOnOneRankIsNamedOnce) {
  const TemporaryFolder folder("beside_copy");
  std::vector<std::string> said(3);
  on_ranks(3, [&](comm::Job& job, comm::Channel& channel) {
    Saver saver(channel, {.folder = folder.path()}, "");
    Part part(3);
    saver.begin({.contents = part.contents(channel, 3), .wait = [&] {
                   if (job.rank() == 1) throw Error("the GPU does not answer");
                 }});
    wait_until([&] { return saver.asks_to_settle(); });
    EXPECT_TRUE(saver.asks_to_settle()) << "a thread that ended so is taken at the next step";
    try {
      saver.end(4);
      ADD_FAILURE() << "rank " << job.rank();
    } catch (const Error& e) {
      said[static_cast<std::size_t>(job.rank())] = e.problem().what;
    }
  });
  EXPECT_EQ(said, (std::vector<std::string>{"", "the GPU does not answer", ""}));
}

/// A channel on which one rank has an error that other ranks do not see.
class BreakingChannel final : public comm::Channel {
 public:
  BreakingChannel(comm::Channel& channel, int calls) : channel_(channel), calls_(calls) {}
  const comm::Place& place() const override { return channel_.place(); }
  int rank_of_job(int rank) const override { return channel_.rank_of_job(rank); }
  std::string broadcast(const std::string& bytes, int root) override {
    pass();
    return channel_.broadcast(bytes, root);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    pass();
    return channel_.all_gather_bytes(bytes);
  }

 private:
  void pass() {
    if (calls_-- == 0) throw std::runtime_error("out of handles");
  }
  comm::Channel& channel_;
  int calls_;
};

TEST(SaveBeside, AThreadThatEndsOnOneRankAloneIsNoticedThere) {
  const TemporaryFolder folder("beside_dies");
  std::atomic<bool> noticed = false;
  const auto run = [&] {
    on_ranks(2, [&](comm::Job& job, comm::Channel& channel) {
      BreakingChannel breaking(channel, job.rank() == 1 ? 4 : -1);
      Saver saver(breaking, {.folder = folder.path()}, "");
      Part part(3);
      saver.begin({.contents = part.contents(channel, 3), .wait = [] {}});
      if (job.rank() == 1) {
        wait_until([&] { return saver.asks_to_settle(); });
        noticed = saver.asks_to_settle();
      }
      saver.end(4);
    });
  };
  try {
    run();
    ADD_FAILURE() << "nobody noticed";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("the thread that writes checkpoints ended"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("out of handles"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(noticed);
  EXPECT_TRUE(checkpoint::list_checkpoints(folder.path()).empty());
}

}  // namespace
}  // namespace octet::train::saver_test
