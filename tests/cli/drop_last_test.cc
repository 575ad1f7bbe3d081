// dataloader_drop_last: which samples of an epoch are dropped, seen in the trained tokens.
#include <gtest/gtest.h>

#include "cli/task.h"

namespace octet::test::drop_last_test {
namespace {

class DropLast : public testing::Test {
 protected:
  Outcome run(const std::string& name, int np, const std::string& more) {
    return trainer(task_.train(folder_ / name,
                               "max_steps=-1 num_train_epochs=1 global_batch_size=null save_strategy=no "
                               "dataloader_drop_last=true " +
                                   more),
                   np);
  }
  std::int64_t steps(const std::string& name) {
    return static_cast<std::int64_t>(steps_of(folder_ / name).size());
  }
  std::int64_t tokens(const std::string& name) {
    return steps_of(folder_ / name).rbegin()->second["total_tokens"].get<std::int64_t>();
  }
  const Task& task_ = Task::get();
  TemporaryFolder folder_{"drop_last"};
};

// Like Hugging Face's Trainer: 17 micro-batches are a step of 16 and a step of one.
TEST_F(DropLast, APartialStepOfWholeMicroBatchesIsTrained) {
  const std::string batch =
      "per_device_train_batch_size=4 gradient_accumulation_steps=16 disable_shuffling=true ";
  expect_success(run("dropped", 0, batch + "max_samples=71"));
  EXPECT_EQ(steps("dropped"), 2);
  expect_success(run("whole", 0, batch + "max_samples=68"));
  EXPECT_EQ(tokens("dropped"), tokens("whole"));
  // On two ranks, a whole micro-batch needs samples for both ranks.
  expect_success(run("ranks", 2,
                     "per_device_train_batch_size=4 gradient_accumulation_steps=8 disable_shuffling=true "
                     "max_samples=71"));
  EXPECT_EQ(steps("ranks"), 1);
  expect_success(run("less", 0, batch + "max_samples=64"));
  EXPECT_EQ(tokens("ranks"), tokens("less"));
}

TEST_F(DropLast, StrictBitsDoNotDependOnTheNumberOfRanks) {
  const std::string batch =
      "deterministic=strict per_device_train_batch_size=4 global_batch_size=16 max_samples=70 ";
  expect_success(run("one", 0, batch));
  expect_success(run("two", 2, batch));
  EXPECT_EQ(steps("one"), 5);
  EXPECT_EQ(tokens("one"), tokens("two"));
  expect_same_losses(folder_ / "one", folder_ / "two", 0);
}

TEST_F(DropLast, AnEpochWithoutAWholeMicroBatchIsRefused) {
  for (const char* more : {"", "streaming=true max_steps=2 "}) {
    const Outcome refused =
        run("refused", 2, "per_device_train_batch_size=8 max_samples=15 " + std::string(more));
    EXPECT_EQ(refused.code, 64) << refused.both();
    EXPECT_EQ(errors_in(refused), 1) << refused.err;
    for (const char* says : {"leaves no samples for training", "16 samples or more", "15 an epoch"}) {
      EXPECT_NE(refused.err.find(says), std::string::npos) << refused.err;
    }
  }
}

}  // namespace
}  // namespace octet::test::drop_last_test
