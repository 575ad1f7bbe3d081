// A killed and resumed run has the bits of an uninterrupted run.
#include <gtest/gtest.h>

#include <set>

#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::test::resume_test {
namespace {

struct ResumedRun {
  std::string name, options;
  int np;
};

void PrintTo(const ResumedRun& recipe, std::ostream* out) {
  *out << recipe.options;
}

class Resume : public testing::TestWithParam<ResumedRun> {};

TEST_P(Resume, AKilledRunEndsInTheSameBits) {
  const TemporaryFolder folder("resume");
  const Task& task = Task::get();
  const auto& [name, options, np] = GetParam();
  // The run is killed while it writes the second checkpoint. The first one stays intact.
  expect_success(trainer(task.train(folder / "whole", options), np));
  const Outcome killed =
      shell("OCTETRUN_FAILPOINT=before_manifest:2 " +
            (np == 0 ? std::string() : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " ") +
            OCTET_TRAINER + " " + task.train(folder / "killed", options));
  EXPECT_NE(killed.code, 0) << killed.both();
  ASSERT_TRUE(std::filesystem::exists(folder / "killed/checkpoint-5")) << killed.both();
  ASSERT_FALSE(std::filesystem::exists(folder / "killed/checkpoint-10")) << killed.both();
  const Outcome resumed = trainer(task.train(folder / "killed", options), np);
  expect_success(resumed);
  EXPECT_NE(resumed.err.find("Continuing from global step 5"), std::string::npos) << resumed.err;
  expect_identical(folder / "whole/checkpoint-12", folder / "killed/checkpoint-12");
  EXPECT_EQ(slurp(folder / "whole/model.safetensors"), slurp(folder / "killed/model.safetensors"));
  expect_every_step(folder / "killed", 12);
  expect_same_losses(folder / "killed", folder / "whole", 0);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Resume,
    testing::Values(ResumedRun{"delayed_alone", "bf16=true fp8=true fp8_amax_history_len=4", 0},
                    ResumedRun{"int8_three", "pure_bf16=true optim_dtype=int8 zero_stage=2", 3}),
    [](const auto& param) { return param.param.name; });
INSTANTIATE_TEST_SUITE_P(
    Whole, Resume,
    testing::Values(ResumedRun{"bf16_alone", "bf16=true", 0},
                    ResumedRun{"block_three", "bf16=true fp8=true fp8_recipe=block zero_stage=3", 3},
                    ResumedRun{"plateau_three",
                               "bf16=true zero_stage=2 val_size=12 eval_strategy=steps eval_steps=1 "
                               "lr_scheduler_type=reduce_lr_on_plateau lr_scheduler_kwargs.patience=1 "
                               "lr_scheduler_kwargs.threshold=0.2",
                               3},
                    ResumedRun{"current_alone", "bf16=true fp8=true fp8_recipe=current", 0},
                    ResumedRun{"pure_bf16_alone", "pure_bf16=true fp8=true", 0},
                    ResumedRun{"bf16_three", "bf16=true zero_stage=1", 3},
                    ResumedRun{"delayed_three", "bf16=true fp8=true zero_stage=1", 3},
                    ResumedRun{"current_three", "bf16=true fp8=true fp8_recipe=current", 3}),
    [](const auto& param) { return param.param.name; });

// One rank dies in the middle of a step, as if killed by the kernel for lack of memory.
TEST(ResumeAfterSigkill, OneRankKilledEndsTheJobAndTheNextStartGoesOn) {
  const TemporaryFolder folder("sigkill");
  const Task& task = Task::get();
  const std::string options =
      "max_steps=120 save_steps=10 bf16=true zero_stage=1 lr_scheduler_type=constant ";
  const std::string log = folder / "run/trainer_log.jsonl";
  // The script exits with the launcher's code.
  const Outcome killed =
      shell(OCTET_SOURCE_DIR "/launch/mpirun -np 3 " OCTET_TRAINER " " + task.train(folder / "run", options) +
            " & job=$!; until [ -d " + (folder / "run/checkpoint-10") + " ] && [ $(cat " + log +
            " 2>/dev/null | wc -l) -ge 13 ]; do sleep 0.02; done; "
            "below() { for c in $(cat /proc/$1/task/*/children 2>/dev/null); do echo $c; below $c; done; }; "
            "for p in $(below $job); do grep -qsz '^OMPI_COMM_WORLD_RANK=1$' /proc/$p/environ && kill -9 $p; "
            "done; wait $job");
  EXPECT_EQ(killed.code, 137) << killed.both();
  EXPECT_EQ(errors_in(killed), 1) << killed.err;
  EXPECT_NE(killed.err.find("a rank was ended by signal 9"), std::string::npos) << killed.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/checkpoint-120")) << killed.both();
  ASSERT_TRUE(std::filesystem::exists(folder / "run/checkpoint-10")) << killed.both();
  expect_success(trainer(task.train(folder / "run", options), 3));
  expect_every_step(folder / "run", 120);
  expect_success(trainer(task.train(folder / "whole", options), 3));
  expect_identical(folder / "whole/checkpoint-120", folder / "run/checkpoint-120");
}

TEST(ResumeElsewhere, AnotherWorldSizeAndStageGoOnWithinRounding) {
  const TemporaryFolder folder("elsewhere");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "whole"), 2));
  expect_success(trainer(task.train(folder / "moved", "max_steps=5 lr_scheduler_type=constant"), 2));
  expect_success(trainer(task.train(folder / "stayed", "lr_scheduler_type=constant"), 2));
  expect_success(trainer(
      task.train(folder / "moved", "lr_scheduler_type=constant zero_stage=1 per_device_train_batch_size=2"),
      4));
  expect_every_step(folder / "moved", 12);
  expect_same_losses(folder / "moved", folder / "stayed", 1e-5);
}

// Five steps of 24 are half an epoch of 240. With four ranks of 12, the other half is two and a half steps.
TEST(WholeResumeElsewhere, TheOtherHalfOfAnEpochIsTrainedByStepsOfAnotherSize) {
  const TemporaryFolder folder("other-half");
  const Task& task = Task::get();
  const std::string options =
      "max_steps=-1 num_train_epochs=1 global_batch_size=null save_steps=5 log_samples=true ";
  expect_success(
      trainer(task.train(folder / "run", options + "per_device_train_batch_size=12 max_steps=5"), 2));
  const Outcome resumed = trainer(task.train(folder / "run", options + "per_device_train_batch_size=12"), 4);
  expect_success(resumed);
  EXPECT_NE(resumed.err.find("a step trains 48 samples from here on, instead of 24"), std::string::npos)
      << resumed.err;
  expect_every_step(folder / "run", 8);
  EXPECT_DOUBLE_EQ(steps_of(folder / "run").at(8)["epoch"].get<double>(), 1.0);
  std::multiset<std::int64_t> rows;
  for (const auto& line : split(slurp(folder / "run/samples.jsonl"), '\n')) {
    if (line.empty()) continue;
    for (const Json& row : parse_json(line, "samples.jsonl")["rows"].flatten()) {
      if (row.is_number()) rows.insert(row.get<std::int64_t>());
    }
  }
  EXPECT_EQ(rows.size(), 240u);
  EXPECT_EQ(std::set<std::int64_t>(rows.begin(), rows.end()).size(), 240u);
  const checkpoint::Checkpoint last(folder / "run/checkpoint-8");
  EXPECT_EQ(last.state()["samples_seen"], 240);
}

TEST(ResumeElsewhere, AnotherOrderIsRefusedWithinAnEpochAndTakenAtItsEnd) {
  const TemporaryFolder folder("other-order");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "within", "max_steps=5")));
  for (const std::string order :
       {"seed=7", "data_seed=7", "disable_shuffling=true", "packing=true", "streaming=true"}) {
    SCOPED_TRACE(order);
    const Outcome refused = trainer(task.train(folder / "within", order));
    EXPECT_EQ(refused.code, 64) << refused.both();
    EXPECT_EQ(errors_in(refused), 1) << refused.err;
  }
  expect_success(trainer(task.train(folder / "end", "max_steps=10")));
  expect_success(trainer(task.train(folder / "end", "data_seed=7")));
  expect_success(trainer(task.train(folder / "stream", "max_steps=5 streaming=true buffer_size=64")));
  EXPECT_EQ(trainer(task.train(folder / "stream", "streaming=true buffer_size=64 data_seed=7")).code, 64);
  EXPECT_EQ(trainer(task.train(folder / "stream")).code, 64);
}

TEST(ResumeElsewhere, KilledBeforeTheFirstCheckpointItStartsAfresh) {
  const TemporaryFolder folder("afresh");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "whole"), 2));
  const Outcome killed =
      shell("OCTETRUN_FAILPOINT=before_manifest " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " +
            std::string(OCTET_TRAINER) + " " + task.train(folder / "killed"));
  EXPECT_NE(killed.code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "killed/checkpoint-5"));
  expect_success(trainer(task.train(folder / "killed"), 2));
  expect_every_step(folder / "killed", 12);
  expect_identical(folder / "whole/checkpoint-12", folder / "killed/checkpoint-12");
  // Left-overs of the killed save are removed.
  for (const auto& entry : std::filesystem::directory_iterator(folder / "killed")) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace octet::test::resume_test
