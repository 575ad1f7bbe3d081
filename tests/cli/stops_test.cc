// Refusals before any file is touched, causes of a stop, and the files that remain.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/saves.h"
#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/base/log.h"

namespace octet::test::stops_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Returns a shell command that waits until the log of a run has `lines` lines.
std::string until_lines(const std::string& output, int lines) {
  return "until [ $(cat " + output + "/trainer_log.jsonl 2>/dev/null | wc -l) -ge " + std::to_string(lines) +
         " ]; do sleep 0.02; done; ";
}

constexpr const char* kMpirun = OCTET_SOURCE_DIR "/launch/mpirun -np 2 ";

// --- launchers

TEST(OtherLaunchers, AreRefusedBeforeAFileIsTouchedWithTheLineToType) {
  const TemporaryFolder folder("launchers");
  const std::string run = OCTET_TRAINER " " + Task::get().train(folder / "run");
  const std::string torchrun = "WORLD_SIZE=2 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none MASTER_ADDR=localhost ";
  const Outcome first = shell(torchrun + "RANK=0 " + run);
  EXPECT_EQ(first.code, 64) << first.both();
  EXPECT_EQ(errors_in(first), 1) << first.err;
  EXPECT_TRUE(says(first, "torchrun started 2 processes")) << first.err;
  EXPECT_TRUE(says(first, "launch/mpirun -np 2 " OCTET_TRAINER " train ")) << first.err;
  const Outcome second = shell(torchrun + "RANK=1 " + run);
  EXPECT_EQ(second.code, 64);
  EXPECT_EQ(second.err, "") << "one of them speaks";
  const Outcome slurm = shell("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 " + run);
  EXPECT_EQ(slurm.code, 64);
  EXPECT_TRUE(says(slurm, "srun --mpi=pmix -n 4 " OCTET_TRAINER)) << slurm.err;
  // Slurm's pmi2, or the launcher of another MPI: this program's MPI cannot detect it.
  const Outcome deaf = shell("PMI_RANK=0 PMI_SIZE=3 " + run);
  EXPECT_EQ(deaf.code, 64) << deaf.both();
  EXPECT_EQ(errors_in(deaf), 1) << deaf.err;
  EXPECT_TRUE(says(deaf, "of MPICH or Intel MPI, and this program is built with Open MPI ")) << deaf.err;
  EXPECT_TRUE(says(deaf, "OCTETRUN_MPIRUN_FILE=/")) << deaf.err;
  // Slurm's PMI-2, for which MPI's own message is not helpful.
  const Outcome pmi2 = shell("PMI_RANK=0 PMI_SIZE=2 PMI_FD=9 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 " + run);
  EXPECT_EQ(pmi2.code, 64) << pmi2.both();
  EXPECT_EQ(errors_in(pmi2), 1) << pmi2.err;
  EXPECT_TRUE(says(pmi2, "srun --mpi=pmix -n 2 " OCTET_TRAINER)) << pmi2.err;
  // torchrun under one rank of MPI: all its processes would use that rank's number.
  const Outcome below = shell(torchrun + "RANK=0 LOCAL_WORLD_SIZE=2 PMIX_RANK=0 " + run, 20);
  EXPECT_EQ(below.code, 64) << below.both();
  EXPECT_EQ(errors_in(below), 1) << below.err;
  EXPECT_TRUE(says(below, "an outer MPI launcher counts them as one rank (PMIX_RANK=0)")) << below.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
  expect_success(shell(torchrun + "RANK=0 OCTETRUN_SINGLE=1 " + run + " max_steps=1"));
}

// Each process would do the work again, in the same folder.
TEST(OtherLaunchers, CommandsOfOneRankAreRefusedToo) {
  const TemporaryFolder folder("launchers_of_one");
  const std::string make = OCTET_TRAINER " quickstart " + (folder / "made");
  const std::string torchrun = "WORLD_SIZE=2 RANK=0 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=none ";
  for (const std::string& launcher :
       {torchrun, torchrun + "PMIX_RANK=0 LOCAL_WORLD_SIZE=2 ",
        std::string("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 "), std::string("PMI_RANK=0 PMI_SIZE=3 ")}) {
    const Outcome run = shell(launcher + make, 20);
    EXPECT_EQ(run.code, 64) << launcher << run.both();
    EXPECT_EQ(errors_in(run), 1) << launcher << run.err;
    EXPECT_TRUE(says(run, "processes that are not connected")) << run.err;
    EXPECT_FALSE(fs::exists(folder / "made")) << launcher;
    EXPECT_EQ(shell(launcher + OCTET_TRAINER " quickstart --help", 20).code, 0) << launcher;
  }
  expect_success(shell(torchrun + "OCTETRUN_SINGLE=1 " + make));
}

// Each host would train alone.
TEST(OtherLaunchers, HostsOfAPlatformAreRefusedByTrainingAlone) {
  const TemporaryFolder folder("hosts");
  for (const std::string& hosts :
       {std::string("RANK=1 WORLD_SIZE=2 "), std::string("NODE_RANK=1 NNODES=2 ")}) {
    const Outcome run = shell(hosts + OCTET_TRAINER " " + Task::get().train(folder / "run"));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_TRUE(says(run, "launch/mpirun --hostfile FILE -np 2 " OCTET_TRAINER " train ")) << run.err;
    EXPECT_FALSE(fs::exists(folder / "run"));
    EXPECT_EQ(shell(hosts + OCTET_TRAINER " lint " + Task::get().config()).code,
              shell(OCTET_TRAINER " lint " + Task::get().config()).code);
  }
}

TEST(OtherLaunchers, VariablesOfHabitAreExplained) {
  const TemporaryFolder folder("habit");
  const Outcome run = shell(
      "WORLD_SIZE=1 RANK=0 MASTER_ADDR=a MASTER_PORT=1 NCCL_DEBUG=INFO HSA_A=1 "
      "CUDA_DEVICE_MAX_CONNECTIONS=1 " OCTET_TRAINER " " +
      Task::get().train(folder / "run", "max_steps=1 device=cpu"));
  expect_success(run);
  for (const char* said :
       {"environment WORLD_SIZE=1: does nothing: this run has 1 rank (", "environment RANK=0: does nothing",
        ", and this run has 1 host (",
        "environment CUDA_DEVICE_MAX_CONNECTIONS=1: does nothing: this run computes on CPUs",
        "environment MASTER_ADDR=a, MASTER_PORT=1: does nothing",
        "environment NCCL_DEBUG=INFO: is a variable of NCCL", "environment HSA_A=1: is a variable of ROCm"}) {
    EXPECT_TRUE(says(run, said)) << said << "\n" << run.err;
  }
  const Outcome two = shell(std::string(kMpirun) + "-x GPU_NUM=8 " OCTET_TRAINER " " +
                            Task::get().train(folder / "two", "max_steps=1"));
  expect_success(two);
  EXPECT_TRUE(says(two, "a rank computes on one GPU, and this run has 2 ranks (")) << two.err;
  // The program itself has set it, not the user.
  EXPECT_FALSE(says(two, "CUDA_DEVICE_MAX_CONNECTIONS")) << two.err;
}

TEST(PlainMpirun, IsToldThatItsSignalsKill) {
  const TemporaryFolder folder("plain");
  const std::string settings =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 ";
  const std::string run = OCTET_TRAINER " " + Task::get().train(folder / "run", "max_steps=1");
  const char* said = "mpirun kills its ranks a second or two after SIGTERM";
  const Outcome plain = shell(settings + "mpirun -np 2 " + run);
  expect_success(plain);
  EXPECT_TRUE(says(plain, said)) << plain.err;
  const Outcome ours = shell(kMpirun + run);
  EXPECT_FALSE(says(ours, said)) << ours.err;
}

TEST(SameStart, RanksWithOtherSettingsEndWithOneMessageThatNamesThem) {
  const TemporaryFolder folder("same");
  const std::string one = OCTET_TRAINER " " + Task::get().train(folder / "run");
  const Outcome rate = two_ranks(one, one + " learning_rate=7.0e-3");
  EXPECT_EQ(rate.code, 64) << rate.both();
  EXPECT_EQ(errors_in(rate), 1) << rate.err;
  EXPECT_TRUE(says(rate, "learning_rate: 0.002 (rank 0 on ")) << rate.err;
  EXPECT_TRUE(says(rate, "learning_rate: 0.007 (rank 1 on ")) << rate.err;
  const Outcome steps = two_ranks(one, one + " max_steps=3");
  EXPECT_EQ(steps.code, 64) << steps.both();
  EXPECT_TRUE(says(steps, "max_steps: 3 (rank 1 on ")) << steps.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
  // Another build of the program: one byte of the linker's hash differs.
  const std::string other = folder / "other";
  const std::string id =
      shell("readelf -n " OCTET_TRAINER " | sed -n \"s/.*Build ID: //p\"").out.substr(0, 40);
  if (id.size() < 40) GTEST_SKIP() << "needs readelf";
  std::string program = slurp(OCTET_TRAINER), bytes;
  for (std::size_t i = 0; i < id.size(); i += 2)
    bytes += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
  const std::size_t at = program.find(bytes);
  ASSERT_NE(at, std::string::npos);
  program[at] = static_cast<char>(program[at] ^ 1);
  spill(other, program);
  ::chmod(other.c_str(), 0755);
  const Outcome build = two_ranks(one, other + " " + Task::get().train(folder / "run"));
  EXPECT_EQ(build.code, 64) << build.both();
  EXPECT_TRUE(says(build, "the program's build: " + id + " (rank 0 on ")) << build.err;
}

TEST(SameStart, CommandsThatRanksRunTogetherCompareTheirArguments) {
  const std::string model = " " + Task::get().model();
  const std::string commands[] = {
      "bench tiny cutoff_len=8 device=cpu warmup=0 steps=", "generate" + model + " --device cpu --max-new ",
      "probe" + model + " --batch none device=cpu --out /tmp/none"};
  for (const std::string& command : commands) {
    const std::string one = OCTET_TRAINER " " + command;
    const Outcome run = two_ranks(one + "1", one + "2");
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_TRUE(says(run, "the ranks have different programs or settings")) << run.err;
    EXPECT_TRUE(says(run, "2 (rank 1 on ")) << run.err;
  }
}

// --- initial weights

TEST(Start, WithoutWeightsIsAnErrorUnlessRandomOnesAreAskedFor) {
  const TemporaryFolder folder("scratch");
  const Outcome run = trainer(Task::get().train(folder / "run", "train_from_scratch=false"), 2);
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_TRUE(says(run, "there are no weights to start from")) << run.err;
  EXPECT_TRUE(says(run, "train_from_scratch: true")) << run.err;
}

TEST(Start, WhatLintDoubtsIsSaidWithinTwentyRows) {
  const TemporaryFolder folder("doubts");
  const std::string doubtful =
      "max_steps=2 learning_rate=0 max_grad_norm=0 warmup_steps=2 cutoff_len=60 val_size=2 "
      "disable_shuffling=true "
      "save_strategy=no overwrite_output_dir=true zero_stage=3 overlap_comm=false logging_steps=9 "
      "num_train_epochs=2 fp8=true fp8_amax_history_len=4 ";
  const Outcome run =
      shell("env -u OCTETRUN_VERBOSE " OCTET_TRAINER " " + Task::get().train(folder / "run", doubtful));
  expect_success(run);
  EXPECT_TRUE(says(run, "more warnings")) << run.err;
  EXPECT_TRUE(says(run, ": read training.log, or type trainer lint CONFIG")) << run.err;
  EXPECT_LE(log::rows_of(run.err.substr(0, run.err.find("{'loss'") - 1)), 20) << run.err;
  const std::string log = slurp(folder / "run/training.log");
  EXPECT_NE(log.find("warning: command line: learning_rate is 0: nothing is learned"), log.npos) << log;
  int warnings = 0;
  for (const auto& line : split(log, '\n')) warnings += line.find(" warning: ") != line.npos ? 1 : 0;
  EXPECT_GE(warnings, 11) << log;
}

TEST(Start, WhatTheModelAndTheFolderMakeDoubtfulIsSaidToo) {
  const TemporaryFolder folder("outside");
  const std::string beyond = "cutoff_len 600 is more than the 512 positions that the model was made for";
  for (const int np : {1, 2}) {
    const std::string output = folder / std::to_string(np);
    const Outcome run = trainer(Task::get().train(output, "cutoff_len=600 max_steps=2 save_steps=2"), np);
    expect_success(run);
    const std::size_t said = run.err.find("warning: command line: " + beyond);
    ASSERT_NE(said, std::string::npos) << run.err;
    EXPECT_LT(said, run.err.find("***** Running training *****"));
    EXPECT_EQ(run.err.find(beyond, said + 30), std::string::npos) << "one rank says it\n" << run.err;
    const std::string resumes = "output_dir holds " + output + "/checkpoint-2: the run resumes from it";
    const std::string again = Task::get().train(output, "max_steps=4 ");
    const Outcome linted = trainer("lint" + again.substr(std::string("train").size()) + "device=cpu");
    EXPECT_EQ(linted.code, 1);
    EXPECT_NE(linted.both().find(resumes), std::string::npos) << linted.both();
    const Outcome resumed = trainer(again, np);
    EXPECT_FALSE(says(resumed, resumes)) << resumed.err;
    EXPECT_TRUE(says(resumed, "  resumed    step 2, " + output + "/checkpoint-2\n")) << resumed.err;
    EXPECT_FALSE(says(trainer(again + "overwrite_output_dir=true", np), "  resumed  "));
  }
}

TEST(Start, TheFolderOfTheModelIsNotWrittenTo) {
  const TemporaryFolder folder("own");
  fs::copy(Task::get().model(), folder / "model", fs::copy_options::recursive);
  const auto before = entries(folder / "model");
  const Outcome run = trainer("train " + Task::get().config() + " model_name_or_path=" + (folder / "model") +
                              " output_dir=" + (folder / "model"));
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1);
  EXPECT_TRUE(says(run, "output_dir is the folder of the base model")) << run.err;
  EXPECT_EQ(entries(folder / "model"), before);
}

// --- two runs, one folder

TEST(OneFolder, ASecondRunIsRefusedAndNamesTheFirst) {
  const TemporaryFolder folder("two");
  const std::string run =
      OCTET_TRAINER " " + Task::get().train(folder / "run", "max_steps=100000 save_steps=100000");
  const Outcome outcome =
      shell(run + " & first=$!; " + until_lines(folder / "run", 2) + run +
            " learning_rate=1e-5; echo second $?; echo pid $first; kill -TERM $first; wait $first; "
            "echo first $?");
  EXPECT_NE(outcome.out.find("second 73"), std::string::npos) << outcome.both();
  EXPECT_NE(outcome.out.find("first 76"), std::string::npos) << outcome.both();
  const std::string pid = outcome.out.substr(outcome.out.find("pid ") + 4);
  EXPECT_TRUE(says(outcome, "found:    process " + pid.substr(0, pid.find('\n')) + " on ")) << outcome.both();
  EXPECT_FALSE(fs::exists(folder / "run/octet.lock"));
}

TEST(OneFolder, AKilledRunFreesItAndItsFilesGo) {
  const TemporaryFolder folder("killed");
  const std::string run = Task::get().train(folder / "run");
  shell(OCTET_TRAINER " " + run + " max_steps=100000 & first=$!; " + until_lines(folder / "run", 6) +
        "kill -KILL $first; wait $first");
  EXPECT_TRUE(fs::exists(folder / "run/octet.lock"));
  for (const char* name :
       {"trainer_state.json.tmp-7", "train_results.json.tmp-7", "checkpoint-7.tmp-1-2/checkpoint.h5"})
    spill(folder / "run/" + name, "half");
  expect_success(trainer(run));
  for (const std::string& name : entries(folder / "run")) {
    EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
    EXPECT_NE(name, "octet.lock");
  }
}

// --- overwriting

// A run on CPUs into a new folder: nothing is deleted, no advice is for GPUs, and nothing is said of FP8.
TEST(CpuRun, SaysNothingOfGpusFp8OrDeletedCheckpoints) {
  const TemporaryFolder folder("cpu_run");
  int runs = 0;
  for (const char* keys : {"bf16=true", "bf16=true overwrite_output_dir=true"}) {
    const std::string output = folder / ("run" + std::to_string(++runs));
    const Outcome run = trainer(Task::get().train(output, std::string("max_steps=1 device=cpu ") + keys));
    expect_success(run);
    for (const char* word : {"overwrite_output_dir", "deleted", "GPU", "FP8", "recipe"})
      EXPECT_EQ(run.both().find(word), std::string::npos) << word << " with " << keys << "\n" << run.both();
  }
}

class Overwriting : public testing::Test {
 protected:
  Overwriting() : folder_("overwriting"), output_(folder_ / "run") {
    expect_success(trainer(Task::get().train(output_)));
  }
  std::string with(const std::string& more) const {
    return Task::get().train(output_, "overwrite_output_dir=true " + more);
  }
  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(Overwriting, TheOldCheckpointsStayUntilThereIsANewOne) {
  const Outcome failed = shell("OCTETRUN_FAILPOINT=before_manifest " OCTET_TRAINER " " + with("seed=7"));
  EXPECT_NE(failed.code, 0);
  for (const char* step : {"5", "10", "12"}) {
    EXPECT_EQ(trainer("inspect " + output_ + "/overwritten/checkpoint-" + step + " --verify").code, 0);
  }
  const Outcome again = shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_TRAINER " " + with("seed=7"));
  EXPECT_NE(again.code, 0);
  EXPECT_TRUE(fs::exists(output_ + "/checkpoint-5"));
  EXPECT_FALSE(fs::exists(output_ + "/overwritten"));
}

TEST_F(Overwriting, WhatAKilledRunLeftGoesThoughNoCheckpointIsLookedFor) {
  const std::string left = output_ + "/checkpoint-7.tmp-1-2";
  spill(left + "/checkpoint.h5", "half");
  expect_success(trainer(with("seed=7 max_steps=2")));
  EXPECT_FALSE(fs::exists(left));
  spill(left + "/checkpoint.h5", "half");
  expect_success(trainer(
      Task::get().train(output_, "seed=7 max_steps=4 resume_from_checkpoint=" + output_ + "/checkpoint-2")));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(Overwriting, AnInterruptedRunThatIsStartedAgainGoesOn) {
  // Killed in its second save, after a complete first one.
  shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_TRAINER " " + with("seed=7"));
  const Outcome again = trainer(with("seed=7"));
  expect_success(again);
  EXPECT_TRUE(says(again, "Continuing from global step 5")) << again.err;
  expect_every_step(output_, 12);
  // A finished run starts again. So does another configuration, and a run with resume_from_checkpoint=false.
  shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_TRAINER " " + with("seed=7"));
  EXPECT_FALSE(says(trainer(with("seed=8 max_steps=6")), "Continuing from"));
  shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_TRAINER " " + with("seed=8"));
  EXPECT_FALSE(says(trainer(with("seed=8 max_steps=12 resume_from_checkpoint=false")), "Continuing from"));
}

// The folder has the weights of an earlier run.
TEST_F(Overwriting, ARunThatWasKilledBeforeItsFinalModelWritesIt) {
  const std::string earlier = slurp(output_ + "/model.safetensors");
  shell("OCTETRUN_FAILPOINT=after_rename:3 " OCTET_TRAINER " " + with("seed=7"));
  ASSERT_TRUE(fs::exists(output_ + "/checkpoint-12"));
  EXPECT_EQ(slurp(output_ + "/model.safetensors"), earlier);
  const Outcome again = trainer(with("seed=7"));
  expect_success(again);
  EXPECT_TRUE(says(again, "Continuing from global step 12")) << again.err;
  const std::string whole = folder_ / "whole";
  expect_success(trainer(Task::get().train(whole, "overwrite_output_dir=true seed=7")));
  EXPECT_EQ(slurp(output_ + "/model.safetensors"), slurp(whole + "/model.safetensors"));
  EXPECT_FALSE(says(trainer(with("seed=7")), "Continuing from")) << "now it is complete";
}

// --- invalid checkpoints

TEST(NotACheckpoint, APipeInPlaceOfTheNewestManifestFallsBackInTime) {
  const TemporaryFolder folder("pipe");
  expect_success(trainer(Task::get().train(folder / "run")));
  const std::string manifest = folder / "run/checkpoint-12/manifest.json";
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  const Outcome again = trainer(Task::get().train(folder / "run"), 2, 60);
  expect_success(again);
  EXPECT_TRUE(says(again, "Continuing from global step 10")) << again.err;
}

// --- exit codes

TEST(ExitCodes, TellDamageFromMistakesAndFromTheDisk) {
  const TemporaryFolder folder("codes");
  expect_success(trainer(Task::get().train(folder / "run")));
  const std::string newest = folder / "run/checkpoint-12";
  std::string bytes = slurp(newest + "/checkpoint.h5");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  spill(newest + "/checkpoint.h5", bytes);
  EXPECT_EQ(trainer("inspect " + newest + " --verify").code, 77) << "damaged data";
  EXPECT_EQ(trainer(Task::get().train(folder / "b", "resume_from_checkpoint=" + newest)).code, 77);
  spill(newest + "/manifest.json", "{");
  EXPECT_EQ(trainer("inspect " + newest + " --verify").code, 77) << "damaged metadata";
  EXPECT_EQ(trainer(Task::get().train("/proc/nothing")).code, 64);
  // A model with other shapes than the checkpoint.
  fs::copy(Task::get().model(), folder / "model", fs::copy_options::recursive);
  Json config = parse_json(slurp(folder / "model/config.json"), "config.json");
  config["intermediate_size"] = 64;
  spill(folder / "model/config.json", config.dump());
  const Outcome shapes = trainer(
      Task::get().train(folder / "c", "model_name_or_path=" + (folder / "model") +
                                          " resume_from_checkpoint=" + (folder / "run/checkpoint-5")));
  EXPECT_EQ(shapes.code, 64) << shapes.both();
}

// --- stops

TEST(Stops, RequestsThatRepeatThemselvesSaveAllTheSame) {
  const TemporaryFolder folder("repeated");
  const std::string run =
      OCTET_TRAINER " " + Task::get().train(folder / "run", "max_steps=100000 save_steps=100000");
  const Outcome outcome = shell(run + " & job=$!; " + until_lines(folder / "run", 3) +
                                "for s in TERM USR2 HUP TERM; do kill -$s $job 2>/dev/null; done; wait $job");
  EXPECT_EQ(outcome.code, 76) << outcome.both();
  EXPECT_TRUE(
      says(outcome, "stopping after this step, with a checkpoint; a request after 5 s stops the run at once"))
      << outcome.err;
}

TEST(Stops, AskedAgainWithinTheGraceItSaysThatItIsStoppingOnceASecond) {
  const TemporaryFolder folder("answered");
  const std::string many = folder / "many.jsonl";
  expect_success(shell("for i in $(seq 100); do cat " + Task::get().data() + "; done > " + many, 20));
  const std::string run =
      OCTET_TRAINER " " +
      Task::get().train(folder / "run", "stop_grace=60 max_steps=9 save_steps=1 dataset=" + many +
                                            " gradient_accumulation_steps=null global_batch_size=24000");
  const Outcome outcome = shell(
      run + " & job=$!; until [ -e " + (folder / "run/training.log") + " ] && grep -q \"Running training\" " +
          (folder / "run/training.log") +
          "; do sleep 0.05; done; sleep 0.3; kill -TERM $job; sleep 0.2; kill -TERM $job; kill -TERM $job; "
          "sleep 0.1; kill -USR2 $job; sleep 0.2; kill -KILL $job; wait $job",
      60);
  const std::string line = "the run is stopping already: wait, or repeat the request in ";
  EXPECT_TRUE(says(outcome, line + "60 s to stop at once, without a checkpoint")) << outcome.err;
  EXPECT_EQ(outcome.err.find(line), outcome.err.rfind(line))
      << "terminals repeat themselves: " << outcome.err;
}

TEST(Stops, AskedAgainAfterTheGraceItEndsAtOnceAndSaysWhatIsLost) {
  const TemporaryFolder folder("twice");
  // A step takes many seconds, so that the second request arrives before its end. The last step of an epoch
  // is limited by the remaining data, so the data must be as large as the step.
  const std::string many = folder / "many.jsonl";
  expect_success(shell("for i in $(seq 200); do cat " + Task::get().data() + "; done > " + many, 20));
  const std::string run =
      OCTET_TRAINER " " +
      Task::get().train(folder / "run", "stop_grace=0.2 max_steps=9 save_steps=1 dataset=" + many +
                                            " gradient_accumulation_steps=null global_batch_size=48000");
  const Outcome outcome =
      shell(run + " & job=$!; until [ -e " + (folder / "run/training.log") +
                " ] && grep -q \"Running training\" " + (folder / "run/training.log") +
                "; do sleep 0.05; done; sleep 0.5; kill -TERM $job; sleep 0.5; kill -TERM $job; wait $job",
            60);
  EXPECT_EQ(outcome.code, 143) << outcome.both();
  EXPECT_TRUE(says(outcome, "stopped at once, as asked twice: there is no checkpoint")) << outcome.err;
}

TEST(Stops, TheLauncherNeverCallsItself) {
  const TemporaryFolder folder("path");
  fs::create_directories(folder / "bin");
  fs::copy(OCTET_SOURCE_DIR "/launch/mpirun", folder / "bin/mpirun");
  fs::create_symlink(OCTET_SOURCE_DIR "/launch/mpirun", folder / "bin/mpiexec");
  fs::create_directories(folder / "installed");
  const std::string build = fs::path(OCTET_TRAINER).parent_path().parent_path();
  fs::create_symlink(build + "/bin/octet-mpirun", folder / "installed/mpirun");
  spill(folder / "last/mpirun",
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo \"mpirun (Open MPI) 4.1.4\"; exit 0; }\n"
        "echo called >>" +
            (folder / "told") + "\n");
  fs::permissions(folder / "last/mpirun", fs::perms::owner_all);
  const std::string ours = OCTET_SOURCE_DIR "/launch";
  for (const std::string& first : {ours, folder / "bin", folder / "installed"}) {
    fs::remove(folder / "told");
    const Outcome run =
        shell("export OCTETRUN_BUILD=" + build + " PATH=" + first + ":" + ours + ":" + (folder / "bin") +
                  ":" + (folder / "installed") + ":" + (folder / "last") + ":$PATH; mpirun -np 2 true",
              20);
    expect_success(run);
    EXPECT_EQ(slurp(folder / "told"), "called\n") << first;
  }
}

TEST(Stops, TheLauncherSaysWhatMpirunSaysAndBlamesNoMemory) {
  const Outcome none = shell(OCTET_SOURCE_DIR "/launch/mpirun -np 2 /nonexistent/program", 20);
  EXPECT_NE(none.code, 0);
  EXPECT_TRUE(says(none, "/nonexistent/program")) << none.err;
  EXPECT_FALSE(says(none, "memory")) << none.err;
  const Outcome failed = shell(OCTET_SOURCE_DIR "/launch/mpirun -np 2 false", 20);
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.err, "") << "the program has said what it had to say";
}

TEST(Stops, AKilledLauncherTakesTheRanksWithIt) {
  const TemporaryFolder folder("orphans");
  const std::string output = folder / "run";
  const Outcome outcome =
      shell(kMpirun + (OCTET_TRAINER " " + Task::get().train(output, "max_steps=100000 save_steps=100000")) +
            " & job=$!; " + until_lines(output, 2) +
            "kill -KILL $job; for i in $(seq 100); do left=$(ps -eo comm=,args= | grep -c \"^trainer .*" +
            output + "\"); [ $left -gt 0 ] || break; sleep 0.1; done; echo left $left");
  EXPECT_NE(outcome.out.find("left 0"), std::string::npos) << outcome.both();
}

}  // namespace
}  // namespace octet::test::stops_test
