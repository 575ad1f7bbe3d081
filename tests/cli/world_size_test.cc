// Equal global batches give equal losses with any number of ranks and micro-batches. Stages and overlap
// change no bit at one world size.
#include <gtest/gtest.h>

#include "cli/task.h"

namespace octet::test::world_size_test {
namespace {

TEST(WorldSize, RanksAndAccumulationTradeWithoutChangingTheLosses) {
  const TemporaryFolder folder("world");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "alone", "per_device_train_batch_size=24 save_strategy=no")));
  expect_every_step(folder / "alone", 12);
  struct Trade {
    int np, micro, stage;
  };
  for (const auto& [np, micro, stage] :
       {Trade{0, 3, 1}, Trade{1, 8, 0}, Trade{2, 6, 0}, Trade{2, 12, 1}, Trade{3, 8, 1}, Trade{4, 2, 0},
        Trade{4, 6, 1}, Trade{8, 3, 0}, Trade{8, 1, 1}}) {
    const std::string name = std::to_string(np) + "-" + std::to_string(micro) + "-" + std::to_string(stage);
    SCOPED_TRACE("ranks-micro-stage " + name);
    expect_success(trainer(
        task.train(folder / name, "save_strategy=no per_device_train_batch_size=" + std::to_string(micro) +
                                      " zero_stage=" + std::to_string(stage)),
        np));
    expect_same_losses(folder / name, folder / "alone", 1e-5);
  }
}

TEST(WholeWorldSize, StagesAndOverlapChangeNoBitAtOneWorldSize) {
  const TemporaryFolder folder("stages");
  const Task& task = Task::get();
  const std::string options = "per_device_train_batch_size=2 bf16=true max_steps=5 ";
  expect_success(trainer(task.train(folder / "plain", options + "zero_stage=0 overlap_comm=false"), 3));
  int number = 0;
  for (const std::string different : {"zero_stage=0 overlap_comm=true", "zero_stage=1 overlap_comm=false",
                                      "zero_stage=1 overlap_comm=true"}) {
    SCOPED_TRACE(different);
    const std::string output = folder / std::to_string(number++);
    expect_success(trainer(task.train(output, options + different), 3));
    expect_identical(folder / "plain/checkpoint-5", output + "/checkpoint-5");
  }
}

}  // namespace
}  // namespace octet::test::world_size_test
