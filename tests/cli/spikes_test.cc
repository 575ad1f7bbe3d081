// Steps with loss spikes: the step is skipped, its data are left out, or the run ends. A resume gives equal
// results.
#include "cli/rates.h"
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::spikes_test {
namespace {

constexpr int kBad = 14;  ///< the step with answers unlike all others

/// Twenty steps of eight samples in order on two ranks. One step, or several in a row, has another kind of
/// text.
class Unsteady {
 public:
  explicit Unsteady(int last_bad = kBad) : folder_("unsteady") {
    std::string rows;
    for (int n = 1; n <= 24; ++n) {
      for (int i = 0; i < 8; ++i) {
        const std::string answer =
            n >= kBad && n <= last_bad ? "zqx vkj wzy qqj xkz " + std::to_string(7919 * i) : "salt, tea";
        rows += Json{{"messages",
                      {{{"role", "user"}, {"content", "Sort these: tea, salt"}},
                       {{"role", "assistant"}, {"content", answer}}}}}
                    .dump() +
                "\n";
      }
    }
    spill(folder_ / "rows.jsonl", rows);
  }
  Outcome train(const std::string& output, const std::string& keys) const {
    return trainer(
        Task::get().train(
            folder_ / output,
            "dataset=" + (folder_ / "rows.jsonl") +
                " disable_shuffling=true lr_scheduler_type=constant global_batch_size=8 log_samples=true "
                "per_device_train_batch_size=4 max_steps=20 save_steps=4 learning_rate=1.0e-2 " +
                keys),
        2);
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

TEST(SpikesOfRuns, AreSkippedOnAllRanksAndInTheLog) {
  const Unsteady task;
  const Outcome run = task.train("run", "loss_spike_factor=2 save_steps=1");
  expect_success(run);
  const std::string said = "step 14: its loss of ";
  EXPECT_NE(run.err.find(said), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("the median of the last steps"), std::string::npos);
  EXPECT_NE(run.err.find("; the step was skipped"), std::string::npos);
  expect_identical(task / "run/checkpoint-13", task / "run/checkpoint-14");
  EXPECT_NE(
      trainer("inspect " + (task / "run/checkpoint-14") + " --diff " + (task / "run/checkpoint-15")).code, 0);
  const auto rows = steps_of(task / "run");
  EXPECT_FALSE(rows.at(13).contains("spikes"));
  EXPECT_EQ(rows.at(14).at("spikes"), 1);
  EXPECT_EQ(rows.at(14).at("skipped_steps"), 1);
  EXPECT_EQ(rows.at(20).at("spikes"), 1);
  EXPECT_EQ(rows.at(15).at("loss").is_null(), false);
  EXPECT_NE(run.err.find("1 steps, not finite or spikes\n"), std::string::npos) << run.err;
}

// In strict mode, the loss of a step is computed from many separate micro-batches.
TEST(SpikesOfRuns, OfStrictBitsAreSkippedToo) {
  const Unsteady task;
  const Outcome run = task.train("run", "loss_spike_factor=2 save_strategy=no deterministic=strict");
  expect_success(run);
  const std::size_t at = run.err.find("step 14: its loss of ");
  ASSERT_NE(at, std::string::npos) << run.err;
  EXPECT_NE(run.err.substr(at, run.err.find('\n', at) - at).find("; the step was skipped"), std::string::npos)
      << run.err;
  EXPECT_EQ(steps_of(task / "run").at(14).at("skipped_steps"), 1);
}

TEST(SpikesOfRuns, OfTheNormToo) {
  const Unsteady task;
  expect_success(task.train("run", "grad_norm_spike_factor=3 save_strategy=no"));
  const auto rows = steps_of(task / "run");
  EXPECT_EQ(rows.at(20).at("spikes"), rows.at(20).at("skipped_steps"));
  EXPECT_GE(rows.at(14).at("spikes").get<int>(), 1);
}

TEST(SpikesOfRuns, AResumedRunDecidesAlike) {
  const Unsteady task;
  const std::string keys = "loss_spike_factor=2 save_steps=6 ";
  expect_success(task.train("whole", keys));
  expect_success(task.train("parts", keys + "max_steps=12"));  // saved after step 12, within the window
  const Outcome rest = task.train("parts", keys);
  expect_success(rest);
  EXPECT_NE(rest.err.find("step 14: its loss of "), std::string::npos) << rest.err;
  expect_identical(task / "whole/checkpoint-18", task / "parts/checkpoint-18");
}

TEST(SpikesOfRuns, ARunGoesBackAndLeavesTheDataOut) {
  const Unsteady task;
  const Outcome run = task.train("run", "loss_spike_factor=2 spike_action=rollback");
  expect_success(run);
  EXPECT_NE(run.err.find("returned from step 14 to " + (task / "run/checkpoint-12") +
                         "; the data since this checkpoint are skipped"),
            std::string::npos)
      << run.err;
  expect_every_step(task / "run", 20);
  const auto rows = steps_of(task / "run");
  EXPECT_EQ(rows.at(20).at("rollbacks"), 1);
  // Steps 13 and 14 took the samples of steps 15 and 16 of the data.
  const auto lines = split(slurp(task / "run/samples.jsonl"), '\n');
  EXPECT_EQ(parse_json(lines.at(11), "samples")["rows"][0][0][0], 11 * 8);
  EXPECT_EQ(parse_json(lines.at(12), "samples")["rows"][0][0][0], 14 * 8);
  EXPECT_EQ(parse_json(lines.at(13), "samples")["rows"][0][0][0], 15 * 8);
}

TEST(SpikesOfRuns, ARateThatFollowsEvaluationsGoesBackToo) {
  const Unsteady task;
  const optim::PlateauOptions options{.factor = 0.99, .patience = 0, .threshold = 0.9};
  const Outcome run = task.train(
      "run", "loss_spike_factor=2 spike_action=rollback eval_strategy=steps eval_steps=1 eval_dataset=" +
                 Task::get().held_out() +
                 " lr_scheduler_type=reduce_lr_on_plateau lr_scheduler_kwargs.factor=0.99 "
                 "lr_scheduler_kwargs.patience=0 lr_scheduler_kwargs.threshold=0.9");
  expect_success(run);
  EXPECT_NE(run.err.find("returned from step 14 to " + (task / "run/checkpoint-12")), std::string::npos)
      << run.err;
  expect_rates_follow(task / "run", options, 1.0e-2, 1);
}

TEST(SpikesOfRuns, OrEndIt) {
  const Unsteady task;
  const Outcome run = task.train("run", "loss_spike_factor=2 spike_action=stop");
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("the run stops at a spike"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find((task / "run/checkpoint-12")), std::string::npos) << run.err;
  EXPECT_EQ(steps_of(task / "run").rbegin()->first, 14);
}

TEST(SpikesOfRuns, FiveInARowEndItThoughTheyAreSkipped) {
  const Unsteady task(kBad + 4);
  const Outcome run = task.train("run", "loss_spike_factor=1.3 save_strategy=no");
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("spikes in 5 steps in a row"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("  found:    its loss of "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("lower learning_rate, or raise loss_spike_factor or grad_norm_spike_factor"),
            std::string::npos)
      << run.err;
  EXPECT_EQ(steps_of(task / "run").rbegin()->first, kBad + 4);
}

// Without its own checkpoint, the run goes back to the checkpoint from which it started, also in another
// folder.
TEST(SpikesOfRuns, ARunGoesBackToWhereItBegan) {
  const Unsteady task;
  const std::string keys = "loss_spike_factor=2 save_steps=100 spike_action=rollback ";
  expect_success(task.train("before", keys + "max_steps=12"));
  const std::string from = task / "before/checkpoint-12";
  const Outcome run = task.train("run", keys + "resume_from_checkpoint=" + from);
  expect_success(run);
  EXPECT_NE(run.err.find("returned from step 14 to " + from + "; the data since this checkpoint are skipped"),
            std::string::npos)
      << run.err;
  EXPECT_EQ(steps_of(task / "run").at(20).at("rollbacks"), 1);
  const Outcome none = task.train("none", keys);
  EXPECT_EQ(none.code, 1) << "no host is to be left out for this: " << none.both();
  EXPECT_NE(none.err.find("there is no checkpoint to return to"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace octet::test::spikes_test
