// Starts, stops and restarts: signals, damaged checkpoints, finished runs, folders in use.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/device/cpu.h"

namespace octet::test::lifecycle_test {
namespace {

namespace fs = std::filesystem;

// Runs until the log has `lines` lines, then sends `signal` and waits for the end.
Outcome signalled(const std::string& arguments, const std::string& output, const std::string& signal,
                  int lines = 7) {
  return shell(OCTET_TRAINER " " + arguments + " & job=$!; until [ $(cat " + output +
               "/trainer_log.jsonl 2>/dev/null | wc -l) -ge " + std::to_string(lines) +
               " ]; do sleep 0.02; done; kill -" + signal + " $job; wait $job");
}

std::int64_t newest_step(const std::string& output) {
  std::int64_t newest = 0;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) newest = std::max<std::int64_t>(newest, std::stoll(name.substr(11)));
  }
  return newest;
}

// libgomp reports the number of threads of each team. A rank with threads on the cores of other ranks gives
// equal results, but many times slower, because its threads spin on these cores.
TEST(Threads, OfARankAreItsShareOfTheCores) {
  const TemporaryFolder folder("threads");
  for (const auto& [np, more] : {std::pair{2, ""}, {4, "zero_stage=3 global_batch_size=16"}}) {
    const std::string output = folder / ("np" + std::to_string(np));
    const int cores = cpu::allowed_cores();
    const int share = std::max(1, cores / np);
    const Outcome run = shell(
        "unset OMP_NUM_THREADS; export OMP_DISPLAY_AFFINITY=true OMP_AFFINITY_FORMAT=\"team of "
        "%N\"; " OCTET_SOURCE_DIR "/launch/mpirun -np " +
        std::to_string(np) + " " OCTET_TRAINER " " +
        Task::get().train(output, std::string("device=cpu max_steps=3 ") + more));
    expect_success(run);
    EXPECT_NE(run.both().find(", " + std::to_string(share) + " thread"), std::string::npos) << run.both();
    for (const auto& line : split(run.both(), '\n')) {
      const std::size_t at = line.find("team of ");
      if (at == std::string::npos) continue;
      EXPECT_LE(std::stoi(line.substr(at + 8)), share) << line;
    }
  }
}

TEST(Signals, TermSavesAndStopsAndTheNextStartGoesOn) {
  const TemporaryFolder folder("term");
  const std::string options = "max_steps=80 save_steps=80";
  const std::string run = Task::get().train(folder / "run", options);
  const Outcome stopped = signalled(run, folder / "run", "TERM");
  EXPECT_EQ(stopped.code, 76) << stopped.both();
  const std::int64_t step = newest_step(folder / "run");
  EXPECT_GE(step, 7);
  EXPECT_LT(step, 80);
  expect_every_step(folder / "run", step);
  expect_success(trainer(run));
  expect_every_step(folder / "run", 80);
  expect_success(trainer(Task::get().train(folder / "whole", options)));
  expect_identical(folder / "whole/checkpoint-80", folder / "run/checkpoint-80");
}

// A stop may not leave enough time for an evaluation.
TEST(Signals, AStopWaitsForNoEvaluation) {
  const TemporaryFolder folder("stop_evaluates_not");
  const std::string output = folder / "run";
  const Outcome stopped =
      signalled(Task::get().train(output,
                                  "max_steps=100000 save_steps=100000 eval_strategy=steps eval_steps=1 "
                                  "eval_dataset=" +
                                      Task::get().held_out()),
                output, "TERM");
  EXPECT_EQ(stopped.code, 76) << stopped.both();
  std::int64_t evaluated = 0, trained = 0;
  for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    (row.contains("eval_loss") ? evaluated : trained) = row["current_steps"].get<std::int64_t>();
  }
  EXPECT_EQ(newest_step(output), trained);
  EXPECT_EQ(evaluated, trained - 1) << "every step before";
}

TEST(Signals, UserSignalSavesAndGoesOn) {
  const TemporaryFolder folder("usr1");
  const Outcome run =
      signalled(Task::get().train(folder / "run", "max_steps=500 save_steps=500"), folder / "run", "USR1");
  EXPECT_EQ(run.code, 0) << run.both();
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(folder / "run")) {
    checkpoints += entry.path().filename().string().starts_with("checkpoint-") ? 1 : 0;
  }
  EXPECT_EQ(checkpoints, 2) << "one when asked, one at the end";
}

TEST(Signals, UserSignalToTheLauncherStopsAllRanks) {
  const TemporaryFolder folder("usr2");
  const Outcome stopped =
      shell(OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " " +
            Task::get().train(folder / "run", "max_steps=100000 save_steps=100000") +
            " & job=$!; until [ $(cat " + (folder / "run/trainer_log.jsonl") +
            " 2>/dev/null | wc -l) -ge 5 ]; do sleep 0.02; done; kill -USR2 $job; wait $job");
  EXPECT_EQ(stopped.code, 76) << stopped.both();
  EXPECT_GE(newest_step(folder / "run"), 5);
}

class Finished : public testing::Test {
 protected:
  Finished() : folder_("finished"), output_(folder_ / "run") {
    const Outcome run = trainer(Task::get().train(output_));
    EXPECT_EQ(run.code, 0) << run.both();
  }
  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(Finished, StartedAgainSaysSoAndChangesNothing) {
  const std::string weights = slurp(output_ + "/model.safetensors"),
                    log = slurp(output_ + "/trainer_log.jsonl"),
                    results = slurp(output_ + "/all_results.json");
  const Outcome again = trainer(Task::get().train(output_));
  expect_success(again);
  EXPECT_NE(again.err.find("nothing is left to train"), std::string::npos) << again.err;
  EXPECT_EQ(slurp(output_ + "/model.safetensors"), weights);
  EXPECT_EQ(slurp(output_ + "/trainer_log.jsonl"), log);
  EXPECT_EQ(slurp(output_ + "/all_results.json"), results);
  EXPECT_EQ(newest_step(output_), 12);
}

TEST_F(Finished, ADamagedNewestCheckpointFallsBackToTheOneBefore) {
  const std::string whole = folder_ / "whole";
  fs::copy(output_, whole, fs::copy_options::recursive);
  const std::string data = output_ + "/checkpoint-12/checkpoint.h5";
  std::string bytes = slurp(data);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  spill(data, bytes);
  const Outcome again = trainer(Task::get().train(output_));
  expect_success(again);
  EXPECT_NE(again.err.find("skipping an invalid checkpoint"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("Continuing from global step 10"), std::string::npos) << again.err;
  expect_identical(output_ + "/checkpoint-12", whole + "/checkpoint-12");
  expect_every_step(output_, 12);
}

// A named checkpoint is required; an earlier one is no replacement.
TEST_F(Finished, ADamagedCheckpointThatIsNamedIsRefused) {
  const std::string data = output_ + "/checkpoint-12/checkpoint.h5";
  std::string bytes = slurp(data);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  spill(data, bytes);
  const Outcome run = trainer(
      Task::get().train(output_, "max_steps=14 resume_from_checkpoint=" + output_ + "/checkpoint-12"), 2);
  EXPECT_EQ(run.code, 77) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("the data of a checkpoint are damaged"), std::string::npos) << run.err;
  EXPECT_EQ(steps_of(output_).rbegin()->first, 12);
}

// Commands that read a checkpoint use the newest one of a run's folder, even if the folder has a final model.
TEST_F(Finished, AFolderOfARunStandsForItsNewestCheckpoint) {
  const Outcome newest = trainer("inspect " + output_ + "/checkpoint-12 --json");
  expect_success(newest);
  for (const std::string& folder : {output_, output_ + "/"}) {
    const Outcome run = trainer("inspect " + folder + " --json");
    EXPECT_EQ(run.code, 0) << run.both();
    EXPECT_EQ(parse_json(run.out, "run")["step"], parse_json(newest.out, "checkpoint")["step"]);
  }
  EXPECT_EQ(trainer("inspect --verify " + output_).code, 0);
  EXPECT_EQ(trainer("inspect " + output_ + " --diff " + output_ + "/checkpoint-12").code, 0);
  EXPECT_EQ(trainer("inspect " + output_ + " --diff " + output_ + "/checkpoint-10").code, 1);
  const Outcome out = trainer("export " + output_ + " " + output_ + "/exported");
  EXPECT_EQ(out.code, 0) << out.both();
  EXPECT_NE(trainer("inspect " + output_ + "/exported").code, 0) << "a folder without checkpoints";
}

// Several damaged checkpoints in a row, read by ranks that each read a part.
TEST_F(Finished, DamagedDataAreNoticedWhileTheyAreReadAndTheNextOlderIsTaken) {
  for (const char* step : {"10", "12"}) {
    const std::string data = output_ + "/checkpoint-" + step + "/checkpoint.h5";
    std::string bytes = slurp(data);
    bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 8);
    spill(data, bytes);
  }
  const Outcome again = trainer(Task::get().train(output_, "zero_stage=3"), 2);
  expect_success(again);
  EXPECT_NE(again.err.find("checkpoint-12\nthe data of a checkpoint are damaged"), std::string::npos)
      << again.err;
  EXPECT_NE(again.err.find("checkpoint-10\nthe data of a checkpoint are damaged"), std::string::npos)
      << again.err;
  EXPECT_NE(again.err.find("Continuing from global step 5"), std::string::npos) << again.err;
  expect_every_step(output_, 12);
  for (const char* step : {"10", "12"})
    EXPECT_EQ(trainer("inspect --verify " + output_ + "/checkpoint-" + step).code, 0);
}

TEST_F(Finished, WhenTheDataOfAllAreDamagedNothingIsTouched) {
  for (const char* step : {"5", "10", "12"}) {
    const std::string data = output_ + "/checkpoint-" + step + "/checkpoint.h5";
    std::string bytes = slurp(data);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 8);
    spill(data, bytes);
  }
  const std::string log = slurp(output_ + "/trainer_log.jsonl");
  const Outcome again = trainer(Task::get().train(output_), 2);
  EXPECT_EQ(again.code, 77) << again.both();
  EXPECT_EQ(errors_in(again), 1) << again.err;
  EXPECT_NE(again.err.find("all checkpoints of the output folder are damaged"), std::string::npos)
      << again.err;
  EXPECT_EQ(slurp(output_ + "/trainer_log.jsonl"), log);
  EXPECT_EQ(newest_step(output_), 12);
}

TEST_F(Finished, GoingOnReadsEachByteOfItsCheckpointOnce) {
  const auto size = static_cast<double>(fs::file_size(output_ + "/checkpoint-12/checkpoint.h5"));
  const Outcome again = shell("LD_PRELOAD=" OCTET_FLIPPING_DISK
                              " BAD_DISK_COUNT=checkpoint-12/checkpoint.h5 " OCTET_TRAINER " " +
                              Task::get().train(output_, "max_steps=13 save_strategy=no"));
  expect_success(again);
  const std::size_t at = again.err.rfind("bytes read: ");
  ASSERT_NE(at, std::string::npos) << again.err;
  const double read = std::stod(again.err.substr(at + 12));
  EXPECT_GT(read, 0.9 * size);
  EXPECT_LT(read, 1.3 * size) << "HDF5's own bytes are read each time it is opened";
}

TEST_F(Finished, WithoutAnyCheckpointThatHoldsNothingIsTouched) {
  for (const char* step : {"5", "10", "12"}) {
    fs::resize_file(output_ + "/checkpoint-" + step + "/checkpoint.h5", 1000);
  }
  const std::string log = slurp(output_ + "/trainer_log.jsonl");
  const Outcome again = trainer(Task::get().train(output_), 2);
  EXPECT_EQ(again.code, 77) << again.both();
  EXPECT_EQ(errors_in(again), 1) << again.err;
  EXPECT_EQ(slurp(output_ + "/trainer_log.jsonl"), log);
  EXPECT_EQ(newest_step(output_), 12);
}

TEST_F(Finished, ANamedCheckpointIsResumedInAnotherFolder) {
  const std::string other = folder_ / "other";
  const Outcome run =
      trainer(Task::get().train(other, "resume_from_checkpoint=" + output_ + "/checkpoint-5"));
  expect_success(run);
  expect_identical(other + "/checkpoint-12", output_ + "/checkpoint-12");
  EXPECT_EQ(newest_step(output_), 12);
}

TEST_F(Finished, ResumeTrueAsksForACheckpointAndFalseForNone) {
  const Outcome nothing = trainer(Task::get().train(folder_ / "empty", "resume_from_checkpoint=true"));
  EXPECT_EQ(nothing.code, 77) << nothing.both();
  EXPECT_EQ(errors_in(nothing), 1);
  const Outcome more = trainer(Task::get().train(output_, "resume_from_checkpoint=true max_steps=14"));
  expect_success(more);
  EXPECT_NE(more.err.find("Continuing from global step 12"), std::string::npos) << more.err;
  EXPECT_EQ(newest_step(output_), 14);
}

TEST_F(Finished, OverwritingStartsAfreshAndFinalWeightsAloneAreNotOverwritten) {
  const Outcome over = trainer(Task::get().train(output_, "overwrite_output_dir=true max_steps=6"));
  expect_success(over);
  EXPECT_EQ(newest_step(output_), 6);
  expect_every_step(output_, 6);
  for (const char* step : {"5", "6"}) fs::remove_all(output_ + "/checkpoint-" + step);
  const std::string weights = slurp(output_ + "/model.safetensors");
  const Outcome refused = trainer(Task::get().train(output_), 3);
  EXPECT_EQ(refused.code, 64) << refused.both();
  EXPECT_EQ(errors_in(refused), 1) << refused.err;
  EXPECT_NE(refused.err.find("overwrite_output_dir"), std::string::npos);
  EXPECT_EQ(slurp(output_ + "/model.safetensors"), weights);
}

TEST(Saving, TheLimitKeepsTheNewestAndStrategiesMeanWhatTheySay) {
  const TemporaryFolder folder("saving");
  const Task& task = Task::get();
  const auto checkpoints = [](const std::string& output) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(output)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("checkpoint-")) names.push_back(name.substr(11));
    }
    std::ranges::sort(names);
    return names;
  };
  using Names = std::vector<std::string>;
  expect_success(trainer(task.train(folder / "limit", "save_steps=2 save_total_limit=2")));
  EXPECT_EQ(checkpoints(folder / "limit"), (Names{"10", "12"}));
  const Outcome unkept = trainer(task.train(folder / "no", "save_strategy=no"));
  expect_success(unkept);
  EXPECT_NE(unkept.err.find("checkpoint-12 is removed, the model is kept"), std::string::npos) << unkept.err;
  EXPECT_EQ(unkept.err.find("  checkpoint  "), std::string::npos) << unkept.err;
  EXPECT_EQ(checkpoints(folder / "no"), Names{});
  EXPECT_TRUE(fs::exists(folder / "no/model.safetensors"));
  // 240 rows in batches of 24: ten steps an epoch.
  expect_success(
      trainer(task.train(folder / "epoch", "save_strategy=epoch max_steps=-1 num_train_epochs=1.2")));
  EXPECT_EQ(checkpoints(folder / "epoch"), (Names{"10", "12"}));
  expect_every_step(folder / "epoch", 12);
}

}  // namespace
}  // namespace octet::test::lifecycle_test
