// memory_checkpoint_steps: a killed run resumes from the memory of its hosts, with the bits of an undisturbed
// run, and removes its files there.
#include <sys/stat.h>

#include <filesystem>

#include "cli/adapter_task.h"
#include "cli/saves.h"
#include "cli/small_disk.h"
#include "octet/base/json.h"

namespace octet::test::memory_test {
namespace {

namespace fs = std::filesystem;

const std::string kKeys =
    "deterministic=strict per_device_train_batch_size=2 global_batch_size=24 memory_checkpoint_steps=2 ";

/// A run under launch/supervise that keeps its memory checkpoints in a folder of the test.
class MemoryRun {
 public:
  explicit MemoryRun(const std::string& name) : folder_(name) { fs::create_directory(memory()); }
  std::string operator/(const std::string& name) const { return folder_ / name; }
  std::string memory() const { return folder_ / "memory"; }
  std::string output() const { return folder_ / "run"; }

  /// `environment` applies to all starts. `before_second` runs in a shell between the first and the second
  /// start. It may set $more to further words of the command.
  Outcome run(int np, const std::string& keys, const std::string& environment = "",
              const std::string& before_second = "") const {
    return shell(command(np, Task::get().train(output(), kKeys + keys), environment, before_second));
  }
  std::string command(int np, const std::string& words, const std::string& environment,
                      const std::string& before_second = "") const {
    spill(folder_ / "launcher", "#!/bin/bash\nmore=\necho start >>" + (folder_ / "starts") +
                                    "\nif [ $(wc -l <" + (folder_ / "starts") + ") = 2 ]; then\n:\n" +
                                    before_second +
                                    "\nfi\nexec " OCTET_SOURCE_DIR "/launch/mpirun \"$@\" $more\n");
    ::chmod((folder_ / "launcher").c_str(), 0755);
    return "OCTETRUN_MEMORY_FOLDER=" + memory() + " " + environment +
           " " OCTET_TRAINER " supervise --launcher " + (folder_ / "launcher") + " --first-wait 0.1 -np " +
           std::to_string(np) + " " OCTET_TRAINER " " + words;
  }
  std::vector<Json> incidents() const {
    std::vector<Json> rows;
    for (const auto& line : split(slurp(output() + "/incidents.jsonl"), '\n')) {
      if (!line.empty()) rows.push_back(parse_json(line, "incidents.jsonl"));
    }
    return rows;
  }
  void expect_nothing_left() const {
    for (const auto& entry : fs::directory_iterator(memory())) ADD_FAILURE() << entry.path() << " is left";
  }

 private:
  TemporaryFolder folder_;
};

/// Returns the last checkpoint of a run without kills and without memory checkpoints, trained once.
const std::string& undisturbed() {
  static const TemporaryFolder folder("memory_calm");
  static const std::string path = [] {
    const Outcome run = trainer(Task::get().train(folder / "run", kKeys + "memory_checkpoint_steps=0"));
    if (run.code != 0) throw std::runtime_error(run.both());
    return folder / "run/checkpoint-12";
  }();
  return path;
}
void expect_undisturbed(const MemoryRun& run) {
  expect_identical(undisturbed(), run.output() + "/checkpoint-12");
  expect_every_step(run.output(), 12);
}

struct Killed {
  int np, stage;
  const char *async, *point;
};

/// Kills the run at every third memory checkpoint, when two parts of it are written or not yet sealed. The
/// run must resume from the previous checkpoint.
void expect_same_bits_after_kills(const std::vector<Killed>& cases) {
  for (const Killed& c : cases) {
    const MemoryRun memory("memory_bits");
    const Outcome run = memory.run(
        c.np, "save_steps=100 save_async=" + std::string(c.async) + " zero_stage=" + std::to_string(c.stage),
        std::string("OCTETRUN_FAILPOINT=") + c.point + ":3");
    expect_success(run);
    EXPECT_TRUE(says(run, "the state of step 4 is copied to memory (")) << run.err;
    EXPECT_TRUE(says(run, "Training is resumed from memory of the hosts, step 4")) << run.err;
    const auto rows = memory.incidents();
    ASSERT_GE(rows.size(), 1u);
    EXPECT_EQ(rows[0]["from"], "memory") << run.err;
    EXPECT_EQ(rows[0]["code"], 137);
    EXPECT_LE(rows[0]["steps_lost"], 3);
    EXPECT_GT(rows[0]["goodput"], 0);
    memory.expect_nothing_left();
    expect_undisturbed(memory);
  }
}

TEST(MemoryCheckpoints, AKilledRunGoesOnFromMemoryWithTheSameBits) {
  expect_same_bits_after_kills({{1, 0, "false", "mid_memory"}, {2, 3, "true", "before_memory_seal"}});
}

TEST(WholeMemoryCheckpoints, AKilledRunOfAnyRanksAndStageGoesOnWithTheSameBits) {
  expect_same_bits_after_kills({{2, 0, "true", "before_memory_seal"},
                                {2, 3, "false", "before_memory_seal"},
                                {4, 1, "true", "mid_memory"},
                                {3, 2, "false", "mid_memory"}});
}

TEST(WholeMemoryCheckpoints, AdaptersAreAllThatIsTaken) {
  const MemoryRun memory("memory_lora");
  const std::string keys = "save_steps=100 memory_checkpoint_steps=1 deterministic=strict zero_stage=1 ";
  const Outcome run =
      shell(memory.command(2, lora(memory.output(), keys), "OCTETRUN_FAILPOINT=before_memory_seal:3",
                           "du -b --apparent-size $(ls -t " + memory.memory() +
                               "/*/*/part-0-of-2 | tail -1) >" + (memory / "size")));
  expect_success(run);
  EXPECT_EQ(memory.incidents().at(0)["from"], "memory") << run.err;
  EXPECT_LT(std::stoll(slurp(memory / "size")),
            static_cast<long long>(fs::file_size(adapter_base() + "/model.safetensors")));
  expect_success(trainer(lora(memory / "calm", keys + "memory_checkpoint_steps=0")));
  expect_identical(memory / "calm/checkpoint-6", memory.output() + "/checkpoint-6");
  memory.expect_nothing_left();
}

TEST(WholeMemoryCheckpoints, FewerRanksGoOnFromThoseOfMore) {
  const MemoryRun memory("memory_fewer");
  const Outcome run = memory.run(4, "save_steps=100 zero_stage=2", "OCTETRUN_FAILPOINT=before_memory_seal:3",
                                 "set -- -np 3 \"${@:3}\"; more=zero_stage=3");
  expect_success(run);
  EXPECT_EQ(memory.incidents().at(0)["from"], "memory") << run.err;
  memory.expect_nothing_left();
  expect_undisturbed(memory);
}

// Both generations of rank 1's part are damaged. The disk checkpoint of step 3 remains.
TEST(MemoryCheckpoints, FlippedBitsAreNamedAndTheDiskIsGoneOnFrom) {
  const MemoryRun memory("memory_flip");
  const Outcome run = memory.run(
      2, "save_steps=3", "OCTETRUN_FAILPOINT=before_memory_seal:3",
      "for part in " + memory.memory() +
          "/*/[ab]/part-1-of-2; do printf '\\x55\\xaa' | dd of=$part bs=1 seek=$(($(stat -c %s $part) "
          "- 9)) conv=notrunc status=none; done");
  expect_success(run);
  EXPECT_TRUE(says(run, "a part of a checkpoint in memory is not used (host ")) << run.err;
  EXPECT_TRUE(says(run, "a hash does not match")) << run.err;
  EXPECT_TRUE(says(run, "/part-1-of-2")) << run.err;
  EXPECT_EQ(memory.incidents().at(0)["from"], "disk");
  memory.expect_nothing_left();
  expect_undisturbed(memory);
}

// Memory has step 5 and the disk has step 6 when the save of step 9 is killed.
TEST(MemoryCheckpoints, ANewerCheckpointOnTheDiskGoesBefore) {
  const MemoryRun memory("memory_older");
  const Outcome run = memory.run(2, "save_async=false save_steps=3 memory_checkpoint_steps=5",
                                 "OCTETRUN_FAILPOINT=before_manifest:3");
  expect_success(run);
  EXPECT_EQ(memory.incidents().at(0)["from"], "disk") << run.err;
  EXPECT_EQ(memory.incidents().at(0)["steps_lost"], 3);
  expect_undisturbed(memory);
}

TEST(WholeMemoryCheckpoints, WithoutThemAndWithoutTheDiskARunBeginsAgain) {
  const MemoryRun memory("memory_gone");
  const Outcome run = memory.run(2, "save_steps=100", "OCTETRUN_FAILPOINT=before_memory_seal:3",
                                 "rm -r " + memory.memory() + "/*/[ab]/part-0-of-2");
  expect_success(run);
  EXPECT_EQ(memory.incidents().at(0)["from"], "beginning") << run.err;
  EXPECT_EQ(memory.incidents().at(0)["steps_lost"], memory.incidents().at(0)["step"]);
  expect_undisturbed(memory);
}

TEST(WholeMemoryCheckpoints, OfAnotherConfigurationAreNotTaken) {
  const MemoryRun memory("memory_other");
  const Outcome run =
      memory.run(1, "save_steps=3", "OCTETRUN_FAILPOINT=before_memory_seal:3", "more=learning_rate=1e-3");
  expect_success(run);
  EXPECT_TRUE(says(run, "is of another run, model or configuration")) << run.err;
  EXPECT_EQ(memory.incidents().at(0)["from"], "disk");
}

// overwrite_output_dir and resume_from_checkpoint apply to the first start. Later starts resume.
TEST(WholeMemoryCheckpoints, AnotherBeginningIsMeantForTheFirstStart) {
  for (const char* beginning : {"overwrite_output_dir=true", "resume_from_checkpoint=false"}) {
    const MemoryRun memory("memory_beginning");
    expect_success(trainer(Task::get().train(
        memory.output(), kKeys + "max_steps=11 memory_checkpoint_steps=0 seed=7 save_steps=5")));
    const Outcome run =
        memory.run(2, std::string("save_steps=100 ") + beginning, "OCTETRUN_FAILPOINT=before_memory_seal:3");
    expect_success(run);
    EXPECT_EQ(memory.incidents().at(0)["from"], "memory") << run.err;
    expect_undisturbed(memory);
  }
}

// As with disk checkpoints (SaveInterval.FollowsFrom...): the first is after ten steps, and the interval then
// follows from the cost. save_steps still applies to the disk.
TEST(WholeMemoryCheckpoints, ComeAsOftenAsTheTimeBetweenFailuresSays) {
  // Steps take much longer than the copy.
  const std::string keys = "memory_checkpoint_steps=auto max_steps=14 global_batch_size=240 ";
  for (const auto& [hours, expected] :
       {std::pair{"1e-9", std::vector<int>{10, 11, 12, 13}}, std::pair{"1e6", std::vector<int>{10}}}) {
    const MemoryRun run("memory_interval");
    const Outcome outcome = run.run(2, keys + "mtbf_hours=" + hours);
    expect_success(outcome);
    std::vector<int> taken;
    for (int step = 1; step <= 14; ++step) {
      if (outcome.both().find("the state of step " + std::to_string(step) + " is copied to memory") !=
          std::string::npos)
        taken.push_back(step);
    }
    EXPECT_EQ(taken, expected) << outcome.both();
    EXPECT_EQ(
        outcome.both().find("checkpoints in memory after every step from here on (mtbf_hours): a save") !=
            std::string::npos,
        taken.size() > 1)
        << outcome.both();
    EXPECT_EQ(checkpoints_of(run.output()), (std::vector<std::int64_t>{5, 10, 14}));
    expect_measured_step(outcome, "checkpoints in memory", run.output());
  }
}

TEST(MemoryCheckpoints, WithoutASupervisorNoneAreTakenAndItIsSaid) {
  const MemoryRun memory("memory_alone");
  const Outcome run = shell("OCTETRUN_MEMORY_FOLDER=" + memory.memory() + " " OCTET_TRAINER " " +
                            Task::get().train(memory.output(), kKeys));
  expect_success(run);
  EXPECT_TRUE(says(run, "memory_checkpoint_steps: no checkpoints are kept in memory")) << run.err;
  EXPECT_FALSE(says(run, "copied to memory")) << run.err;
  memory.expect_nothing_left();
}

// A host would resume from this state, and the run would be lost.
TEST(WholeMemoryCheckpoints, AreNotTakenOfWeightsThatAreNotFinite) {
  for (const std::string keys : {"zero_stage=0 save_async=false", "zero_stage=3 save_async=true"}) {
    SCOPED_TRACE(keys);
    const MemoryRun memory("memory_finite");
    // A later entry of the command wins.
    const Outcome run = memory.run(2, keys +
                                          " learning_rate=1e308 weight_decay=0.1 device=cpu save_steps=100 "
                                          "lr_scheduler_type=constant memory_checkpoint_steps=1");
    EXPECT_EQ(run.code, 1) << run.both();
    EXPECT_NE(run.err.find("the weights are not finite, so no checkpoint is written"), std::string::npos)
        << run.err;
    EXPECT_EQ(run.err.find("is copied to memory"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("resumed from memory"), std::string::npos) << run.err;
    memory.expect_nothing_left();
  }
}

TEST(MemoryCheckpoints, AStopSavesOnTheDiskAndLeavesNothing) {
  const MemoryRun memory("memory_stop");
  const Outcome run =
      shell(memory.command(
                2, Task::get().train(memory.output(), kKeys + "max_steps=100000 save_steps=100000"), "") +
            "& job=$!; until grep -qs step.4.is.copied " + memory.output() +
            "/training.log; do sleep 0.02; done; kill -TERM $job; wait $job");
  EXPECT_EQ(run.code, 76) << run.both();
  EXPECT_EQ(checkpoints_of(memory.output()).size(), 1u);
  memory.expect_nothing_left();
}

// The memory checkpoint is newer than the step to which the run goes back, and no longer part of its past.
TEST(WholeMemoryCheckpoints, AreForgottenByARunThatGoesBack) {
  const MemoryRun memory("memory_back");
  const Outcome run = memory.run(1, "save_steps=3 memory_checkpoint_steps=1 sdc_steps=1 sdc_action=rollback",
                                 "OCTETRUN_FLIPS=0:8:moments:1 OCTETRUN_FAILPOINT=before_memory_seal:8");
  expect_success(run);
  EXPECT_TRUE(says(run, "returned from step 7 to " + memory.output() + "/checkpoint-6")) << run.err;
  ASSERT_FALSE(memory.incidents().empty()) << run.err;
  EXPECT_EQ(memory.incidents().at(0)["from"], "disk") << run.err;
  memory.expect_nothing_left();
  expect_undisturbed(memory);
}

// Resumed from memory after the disk checkpoint with the best evaluation.
TEST(WholeMemoryCheckpoints, KnowTheBestCheckpointOnTheDisk) {
  const MemoryRun memory("memory_best");
  const std::string keys = "eval_dataset=" + Task::get().held_out() +
                           " eval_strategy=steps eval_steps=4 save_steps=4 learning_rate=1 warmup_steps=12 "
                           "load_best_model_at_end=true save_async=false ";
  const Outcome run =
      memory.run(1, keys + "memory_checkpoint_steps=1", "OCTETRUN_FAILPOINT=before_memory_seal:10");
  expect_success(run);
  EXPECT_EQ(memory.incidents().at(0)["from"], "memory") << run.err;
  EXPECT_TRUE(says(run, "the final model is the checkpoint of step 8: ")) << run.err;
  memory.expect_nothing_left();
}

// The supervisor is killed and started again, and the run resumes. Then the supervisor is not started again,
// and the keeper cleans up.
TEST(WholeMemoryCheckpoints, OutliveTheSupervisorForAWhile) {
  const MemoryRun memory("memory_supervisor");
  const std::string words = Task::get().train(memory.output(), kKeys + "save_steps=100000 max_steps=100000");
  const auto until_killed = [&](const std::string& more) {
    return memory.command(1, words, "OCTETRUN_MEMORY_KEEP=3") + " & job=$!; until grep -qs " + more + " " +
           memory.output() + "/training.log; do sleep 0.02; done; kill -KILL $job; wait $job; ";
  };
  const Outcome first = shell(until_killed("step.4.is.copied"));
  EXPECT_EQ(first.code, 137) << first.both();
  EXPECT_FALSE(fs::is_empty(memory.memory())) << "it may be started again";
  const Outcome second = shell("sleep 0.5; " + until_killed("resumed.from.memory"));
  EXPECT_EQ(second.code, 137) << second.both();
  EXPECT_EQ(memory.incidents().at(0)["start"], 0);
  shell("for i in $(seq 100); do [ -z \"$(ls " + memory.memory() + ")\" ] && break; sleep 0.1; done");
  memory.expect_nothing_left();
}

TEST(MemoryCheckpoints, AHostWithoutRoomIsRefusedWithTheFigures) {
  const SmallDisk small(2048);
  if (!small.mounted()) GTEST_SKIP() << kNoSmallDisk;
  const MemoryRun memory("memory_room");
  const Outcome run = shell(
      memory.command(2, Task::get().train(memory.output(), kKeys), "OCTETRUN_MEMORY_FOLDER=" + small.path()));
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_TRUE(says(run, "a host has too little memory for checkpoints in memory")) << run.err;
  EXPECT_TRUE(says(run, "2.0 MiB in " + small.path())) << run.err;
  EXPECT_EQ(errors_in(run), 2) << "its own, and that of the supervisor, which gives up: " << run.err;
}

TEST(MemoryCheckpoints, AreInThePlan) {
  const auto plan = [](const std::string& more) {
    const Outcome run = trainer("plan --json llama-3.1-8b cutoff_len=512 memory_checkpoint_steps=" + more);
    EXPECT_EQ(run.code, 0) << run.both();
    return parse_json(run.out, "standard output");
  };
  const double state = 12 * 8.03e9;  // masters and two moments, fp32, twice
  const std::string name = "state/memory checkpoints";
  const Json cpu = plan("5 device=cpu memory=900GB world=4 zero_stage=1");
  EXPECT_NEAR(cpu["memory"][name].get<double>() / state, 2 * 0.25, 0.01);
  EXPECT_FALSE(plan("0 device=cpu memory=900GB world=4 zero_stage=1")["memory"].contains(name));
  const Json gpu = plan("5 device=cuda memory=200GB");
  EXPECT_NEAR(gpu["host_memory"][name].get<double>() / state, 2, 0.01) << gpu;
}

}  // namespace
}  // namespace octet::test::memory_test
