// samples.jsonl of a run, and its continuation by the next run.
#include "../src/train/train_steps.h"

#include <gtest/gtest.h>

#include "octet/comm/thread_ranks.h"
#include "support/program.h"

namespace octet::train::sample_log_test {
namespace {

/// Logs steps `first` + 1 to `last` of two ranks with two micro-batches each.
void log_steps(const std::string& folder, std::int64_t first, std::int64_t last) {
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, Device&) {
    SampleLog log(job, folder, first);
    for (std::int64_t step = first + 1; step <= last; ++step) {
      runtime::HostBatch batch;
      batch.rows = {10 * step + job.rank()};
      log.add(batch);
      batch.rows = {7, 8};
      log.add(batch);
      log.end_step(step);
    }
  });
}

std::string line(std::int64_t step) {
  const std::string number = std::to_string(10 * step), next = std::to_string(10 * step + 1);
  return "{\"step\":" + std::to_string(step) + ",\"rows\":[[[" + number + "],[7,8]],[[" + next +
         "],[7,8]]]}\n";
}

TEST(SampleLog, HoldsEveryStepOnceWhereverTheRunWentOn) {
  const test::TemporaryFolder folder("sample_log");
  const std::string path = folder / "samples.jsonl";
  log_steps(folder.path(), 0, 3);
  EXPECT_EQ(test::slurp(path), line(1) + line(2) + line(3));
  // Resumed after step 2: its line is kept, step 3 is logged again, and the truncated line is removed.
  test::spill(path, line(1) + line(2) + line(3) + "{\"step\":4,\"rows\":[[[");
  log_steps(folder.path(), 2, 4);
  EXPECT_EQ(test::slurp(path), line(1) + line(2) + line(3) + line(4));
  log_steps(folder.path(), 0, 1);
  EXPECT_EQ(test::slurp(path), line(1)) << "a fresh start begins a new log";
}

TEST(SampleLog, AFolderThatTakesNoFileIsAnErrorOnAllRanks) {
  EXPECT_THROW(log_steps("/proc/nowhere", 0, 1), Error);
}

}  // namespace
}  // namespace octet::train::sample_log_test
