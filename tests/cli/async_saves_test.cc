// save_async: checkpoints that are written during training have the bits of synchronous checkpoints, even
// after failures.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/saves.h"
#include "octet/base/json.h"

namespace octet::test::async_saves_test {
namespace {

namespace fs = std::filesystem;

std::string beside(const std::string& output, const std::string& more) {
  return Task::get().train(output, "save_async=true " + more);
}

/// Runs the trainer with a faulty disk for files with these names: it flips bits, is slow, or hangs.
Outcome on_disk(const std::string& fault, const std::string& words, const std::string& arguments) {
  return shell("LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_" + fault + "=" + words + " " OCTET_TRAINER " " +
               arguments);
}

// At every number of ranks and stage, the last step has the same bits. So do checkpoints written while later
// steps changed the state.
TEST(AsyncSaves, AreBitForBitThoseOfARunThatStopsForThem) {
  const TemporaryFolder folder("async_bits");
  const std::string keys =
      "deterministic=strict save_steps=2 max_steps=6 per_device_train_batch_size=2 global_batch_size=24 ";
  expect_success(trainer(Task::get().train(folder / "whole", keys + "save_async=false")));
  for (const auto& [np, stage] : {std::pair{0, 0}, {2, 0}, {2, 3}, {4, 1}}) {
    const std::string output = folder / (std::to_string(np) + "_" + std::to_string(stage));
    const Outcome run = trainer(beside(output, keys + "zero_stage=" + std::to_string(stage)), np);
    expect_success(run);
    EXPECT_TRUE(says(run, "the state of step 4 is copied")) << run.err;
    for (const char* step : {"2", "4", "6"})
      expect_identical(folder / (std::string("whole/checkpoint-") + step), output + "/checkpoint-" + step);
  }
}

// A resumed run does not write the rows up to its checkpoint again. They must be durable before the
// checkpoint is complete.
TEST(AsyncSaves, AsOthersTheyComeBehindTheRowsOfTheLog) {
  const TemporaryFolder folder("rows_first");
  for (const std::string keys : {"save_async=true", "save_async=false"}) {
    const Outcome run = on_disk("TELL", "trainer_log.jsonl,checkpoint-",
                                Task::get().train(folder / keys, "save_steps=3 max_steps=6 " + keys));
    expect_success(run);
    const auto place = [&run](const std::string& words, std::size_t from) {
      return run.err.find(words + "\n", from);
    };
    std::size_t at = 0;
    for (const std::string name : {"checkpoint-3", "checkpoint-6"}) {
      const std::size_t synced = place("synced " + folder.path() + "/" + keys + "/trainer_log.jsonl", at);
      const std::size_t renamed = place("renamed to " + (folder / keys) + "/" + name, at);
      ASSERT_NE(renamed, std::string::npos) << run.err;
      EXPECT_LT(synced, renamed) << keys << " " << name << "\n" << run.err;
      at = renamed;
    }
  }
}

TEST(AsyncSaves, AreCalledSavedOnlyWhenTheyAreReadBack) {
  const TemporaryFolder folder("async_flips");
  const std::string output = folder / "run";
  const Outcome run =
      on_disk("FLIP", "checkpoint-4.,checkpoint-6.", beside(output, "save_steps=2 save_total_limit=2"));
  expect_success(run);
  EXPECT_TRUE(says(run, "the state of step 4 is copied")) << run.err;
  EXPECT_TRUE(says(run, "the checkpoint of step 4 was saved, but is damaged")) << run.err;
  EXPECT_FALSE(says(run, "checkpoint of step 4 saved to")) << run.err;
  const auto steps = checkpoints_of(output);
  ASSERT_EQ(steps.size(), 2u);
  for (const std::int64_t step : steps) {
    EXPECT_EQ(trainer("inspect --verify " + output + "/checkpoint-" + std::to_string(step)).code, 0);
    EXPECT_TRUE(says(run, "checkpoint of step " + std::to_string(step) + " saved to"));
  }
}

TEST(AsyncSaves, AThreadThatHangsInTheDiskEndsTheRunAndSavedNothing) {
  const TemporaryFolder folder("async_hang");
  const Outcome run =
      on_disk("HANG", "checkpoint-2.", beside(folder / "run", "save_steps=2 max_steps=100000 ddp_timeout=1"));
  EXPECT_EQ(run.code, 75) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_TRUE(says(run, "the state of step 2 is copied")) << run.err;
  EXPECT_FALSE(says(run, "saved to")) << run.err;
}

// Training continues while a slow disk writes. A stop completes the save in flight and does not repeat it.
TEST(AsyncSaves, AStopEndsWhatIsInFlightAndSavesItsOwnStep) {
  const TemporaryFolder folder("async_stop");
  const std::string output = folder / "run";
  // The next save is due many steps later, so that a busy machine sends its signal before.
  const Outcome run =
      shell("LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_SLOW=checkpoint-60. " OCTET_TRAINER " " +
            beside(output,
                   "max_steps=100000 save_steps=60 save_strategy=steps logging_steps=1 save_total_limit=9 ") +
            "& job=$!; until grep -qs step.60.is.copied " + output +
            "/training.log; do sleep 0.02; done; kill -TERM $job; wait $job");
  EXPECT_EQ(run.code, 76) << run.both();
  const auto steps = checkpoints_of(output);
  const std::int64_t last = steps_of(output).rbegin()->first;
  ASSERT_EQ(steps, (std::vector<std::int64_t>{60, last})) << run.err;
  EXPECT_GE(last, 61) << "the run went on while its checkpoint was written";
  for (const std::int64_t step : steps) {
    EXPECT_EQ(trainer("inspect --verify " + output + "/checkpoint-" + std::to_string(step)).code, 0);
    const std::string said = "checkpoint of step " + std::to_string(step) + " saved to";
    EXPECT_EQ(run.err.find(said), run.err.rfind(said)) << "once: " << run.err;
  }
}

// The message appears only if save_async is set.
TEST(WholeAsyncSaves, ASaveThatIsDueWhileOneIsInFlightWaitsAndSaysSo) {
  for (const std::string asked : {"save_async=true", "", "save_async=auto"}) {
    const TemporaryFolder folder("async_due");
    const std::string output = folder / "run";
    const Outcome run = on_disk("SLOW", "checkpoint-2.", Task::get().train(output, "save_steps=2 " + asked));
    expect_success(run);
    EXPECT_EQ(says(run, "step 4 waits for the checkpoint of step 2 to be written"),
              asked == "save_async=true")
        << run.err;
    EXPECT_EQ(checkpoints_of(output), (std::vector<std::int64_t>{2, 4, 6, 8, 10, 12}));
    expect_every_step(output, 12);
  }
}

TEST(WholeAsyncSaves, ThatFailGoToTheSecondPlaceOrAreTriedAgain) {
  const TemporaryFolder folder("async_fails");
  const std::string full = "OCTETRUN_FAILPOINT=full_disk ";
  spill(folder / "run/disk-is-full", "");
  const Outcome second =
      shell(full + OCTET_TRAINER " " +
            beside(folder / "run", "save_steps=5 save_fallback_dir=" + (folder / "second")));
  expect_success(second);
  EXPECT_TRUE(says(second, "it is in save_fallback_dir")) << second.err;
  spill(folder / "none/disk-is-full", "");
  const Outcome none = shell(full + OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " " +
                             beside(folder / "none", "max_steps=500 save_steps=10 max_failed_saves=3"));
  EXPECT_EQ(none.code, 78) << none.both();
  EXPECT_EQ(errors_in(none), 1) << none.err;
  EXPECT_TRUE(says(none, "5 saves in a row that failed")) << "three, and the two of the end: " << none.err;
}

TEST(AsyncSaves, TheBestOfThemIsTheFinalModel) {
  const TemporaryFolder folder("async_best");
  const std::string keys = "eval_dataset=" + Task::get().held_out() +
                           " eval_strategy=steps eval_steps=2 save_steps=2 max_steps=12 learning_rate=1 "
                           "warmup_steps=12 load_best_model_at_end=true save_total_limit=1 ";
  expect_success(trainer(Task::get().train(folder / "stops", keys)));
  const Outcome run = trainer(beside(folder / "goes_on", keys));
  expect_success(run);
  EXPECT_TRUE(says(run, ": its evaluation loss")) << run.err;
  EXPECT_EQ(slurp(folder / "goes_on/model.safetensors"), slurp(folder / "stops/model.safetensors"));
  EXPECT_EQ(checkpoints_of(folder / "goes_on"), checkpoints_of(folder / "stops"));
}

// The saving thread is killed at any point: the next start ends in the bits of a run that was not killed.
TEST(WholeAsyncSaves, KilledAtAnyPointTheRunGoesOnFromAWholeCheckpoint) {
  const TemporaryFolder folder("async_killed");
  const std::string keys = "save_steps=2 max_steps=8 save_total_limit=2 ";
  expect_success(trainer(Task::get().train(folder / "whole", keys + "save_async=false")));
  for (const char* point : {"before_write:2", "mid_write:100", "before_fsync:2", "before_manifest:2",
                            "before_rename:2", "after_rename:2", "before_prune"}) {
    const std::string output = folder / point;
    const Outcome killed =
        shell(std::string("OCTETRUN_FAILPOINT=") + point + " " OCTET_TRAINER " " + beside(output, keys));
    EXPECT_EQ(killed.code, 137) << point << killed.both();
    const Outcome again = trainer(beside(output, keys));
    expect_success(again);
    EXPECT_TRUE(says(again, "Continuing from global step ")) << point << again.err;
    expect_every_step(output, 8);
    expect_identical(folder / "whole/checkpoint-8", output + "/checkpoint-8");
    EXPECT_EQ(checkpoints_of(output), (std::vector<std::int64_t>{6, 8}));
  }
}

// The memory of a run grows by one copy of the state, once.
TEST(WholeAsyncSaves, TakeNoMoreMemoryTheMoreThereAre) {
  const TemporaryFolder folder("async_memory");
  fs::copy(Task::get().model(), folder / "model", fs::copy_options::recursive);
  Json config = parse_json(slurp(folder / "model/config.json"), "config.json");
  config["hidden_size"] = 256, config["intermediate_size"] = 768, config["num_attention_heads"] = 4;
  config["num_key_value_heads"] = 4, config["head_dim"] = 64;
  spill(folder / "model/config.json", config.dump());
  const auto memory = [&](const std::string& name, const std::string& keys) {
    expect_success(trainer(Task::get().train(
        folder / name, "model_name_or_path=" + (folder / "model") +
                           " max_steps=24 save_steps=1 save_total_limit=1 global_batch_size=4 " + keys)));
    const auto steps = steps_of(folder / name);
    const auto at = [&](std::int64_t step) { return steps.at(step)["vram_reserved"].get<double>() * 1024; };
    return std::pair(at(6), at(24));  // MiB
  };
  const auto [stops_first, stops_last] = memory("stops", "save_async=false");
  const auto [beside_first, beside_last] = memory("beside", "save_async=true");
  const double state = 12 * 2.0;
  EXPECT_NEAR(beside_last - stops_last, state, 0.4 * state);
  EXPECT_LT((beside_last - beside_first) - (stops_last - stops_first), 0.2 * state)
      << beside_first << " to " << beside_last << ", and " << stops_first << " to " << stops_last;
}

// auto saves asynchronously if a quarter of the memory remains free after the copy. This never takes memory
// from options that make steps faster.
TEST(AsyncSaves, AreWhatIsDoneWhereTheMemoryHoldsTheCopy) {
  const TemporaryFolder folder("async_auto");
  const auto plan = [](const std::string& more) {
    const Outcome run = trainer("plan --json tiny device=cpu recompute=auto cutoff_len=512 " + more);
    return parse_json(run.out, "standard output");
  };
  const Json with = plan("memory=1TB save_async=true"), without = plan("memory=1TB save_async=false");
  const auto reserved = with["total_bytes"].get<std::int64_t>() - with["library_bytes"].get<std::int64_t>();
  const auto memory = [&](std::int64_t bytes) {
    return plan("memory=" + std::to_string(bytes + with["library_bytes"].get<std::int64_t>()));
  };
  EXPECT_EQ(memory(reserved / 3 * 4 + 64)["memory"], with["memory"]);
  EXPECT_EQ(memory(reserved / 3 * 4 - 64)["memory"], without["memory"]) << "and nothing is computed twice";
  EXPECT_TRUE(plan("memory=1TB save_strategy=no")["memory"] == without["memory"]);
  EXPECT_TRUE(plan("memory=1TB max_steps=9 save_steps=9")["memory"] == without["memory"]) << "one at the end";
  EXPECT_TRUE(plan("memory=1TB max_steps=9 save_steps=8")["memory"] == with["memory"]);
  EXPECT_TRUE(plan("memory=80GB device=cuda")["pinned_memory"].contains("state/snapshot"));
  for (const auto& [mebibytes, beside] : {std::pair{"1000", true}, std::pair{"2", false}}) {
    const Outcome run = shell(std::string("OCTETRUN_MEMORY_LIMIT=") + mebibytes + " " OCTET_TRAINER " " +
                              Task::get().train(folder / mebibytes));
    expect_success(run);
    EXPECT_EQ(says(run, "the state of step 5 is copied"), beside) << run.err;
    EXPECT_EQ(says(run, "training pauses during saves, since host memory has no room"), !beside) << run.err;
    const std::string resolved = slurp(folder / mebibytes + std::string("/config.resolved.yaml"));
    EXPECT_NE(resolved.find(std::string("save_async: ") + (beside ? "true" : "false")), std::string::npos);
  }
}

// A single save at the end of a run overlaps with no steps.
TEST(WholeAsyncSaves, AreForRunsThatSaveBeforeTheirEnd) {
  const TemporaryFolder folder("async_end");
  int number = 0;
  for (const auto& [keys, beside] : {std::pair{"save_steps=12", false}, std::pair{"save_steps=11", true},
                                     std::pair{"save_strategy=epoch max_steps=10", false},
                                     std::pair{"save_strategy=epoch max_steps=11", true}}) {
    const Outcome run = trainer(Task::get().train(folder / std::to_string(++number), keys));
    expect_success(run);
    EXPECT_EQ(says(run, "is copied ("), beside) << keys << run.err;
    EXPECT_FALSE(says(run, "has no room")) << run.err;
  }
}

TEST(AsyncSaves, TheCopyIsInThePlan) {
  const auto plan = [](const std::string& more) {
    const Outcome run = trainer("plan --json llama-3.1-8b cutoff_len=512 " + more);
    return parse_json(run.out, "standard output");
  };
  const double state = 12 * 8.03e9;  // masters and two moments, fp32
  const Json gpu = plan("device=cuda memory=200GB save_async=true");
  EXPECT_NEAR(gpu["pinned_memory"]["state/snapshot"].get<double>() / state, 1, 0.01);
  EXPECT_EQ(gpu["total_bytes"], plan("device=cuda memory=200GB save_async=false")["total_bytes"]);
  const Json cpu = plan("device=cpu memory=900GB save_async=true world=4 zero_stage=1");
  EXPECT_NEAR(cpu["memory"]["state/snapshot"].get<double>() / state, 0.25, 0.01);
  EXPECT_FALSE(
      plan("device=cpu memory=900GB save_async=true save_strategy=no")["memory"].contains("state/snapshot"));
}

}  // namespace
}  // namespace octet::test::async_saves_test
