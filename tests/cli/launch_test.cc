// The scripts of launch/, with stand-ins for the programs that they start: the arguments, signals and exit
// codes.
#include <filesystem>

#include "cli/launch_scripts.h"

namespace octet::test::launch_test {
namespace {

namespace fs = std::filesystem;

// --- launch/slurm.sbatch

class Sbatch : public Launch {
 protected:
  static constexpr const char* kScript = OCTET_SOURCE_DIR "/launch/slurm.sbatch";
  Sbatch() {
    script("build/bin/trainer", "");
    plugins(
        "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4",
        "exit 0");
    script("bin/scontrol", "echo \"$@\" >>" + (folder_ / "scontrol") + "; exit ${REQUEUE_CODE:-0}");
  }
  void plugins(const std::string& list, const std::string& then) const {
    spill(folder_ / "plugins", list);
    script("bin/srun",
           "[ \"$1\" = --mpi=list ] && { cat " + (folder_ / "plugins") +
               " >&2; exit 0; }\necho \"$@, launcher $OCTETRUN_LAUNCHER, $OMPI_MCA_reachable\" >" +
               (folder_ / "srun") + "\n" + then);
  }
  Outcome batch(const std::string& words, const std::string& environment = "") const {
    return run("export SLURM_JOB_ID=17 SLURM_SUBMIT_DIR=" + folder_.path() + " " + environment + "; " +
               "bash " + kScript + " " + words);
  }
};

TEST_F(Sbatch, StartsARankForEachTaskAndEndsAsTheyDo) {
  EXPECT_EQ(batch("c.yaml max_steps=3").code, 0);
  EXPECT_EQ(said("srun"), "--mpi=pmix --kill-on-bad-exit=1 " + (folder_ / "build/bin/trainer") +
                              " c.yaml max_steps=3, launcher 1, weighted\n");
  script("other/bin/trainer", "");
  plugins("pmi2 pmix_v5", "exit 75");
  const Outcome ended = batch("c.yaml", "OCTETRUN_BUILD=" + (folder_ / "other") + " SLURM_RESTART_COUNT=2");
  EXPECT_EQ(ended.code, 75) << ended.both();
  expect_says(said("srun"), "--mpi=pmix_v5 --kill-on-bad-exit=1 " + (folder_ / "other/bin/trainer"));
  EXPECT_EQ(ended.out, "--- started again (2) ---\n");
  fs::rename(folder_ / "build/bin/trainer", folder_ / "bin/trainer");
  EXPECT_EQ(batch("c.yaml").out, "");
  expect_says(said("srun"), " " + (folder_ / "bin/trainer") + " c.yaml,");
}

TEST_F(Sbatch, SaysWhatIsMissing) {
  const Outcome outside = run(std::string("unset SLURM_JOB_ID; bash ") + kScript + " c.yaml");
  EXPECT_EQ(outside.code, 64);
  expect_says(outside.err, "error: this is not inside a Slurm job");
  expect_says(outside.err, "sbatch " + std::string(kScript) + " c.yaml");
  const Outcome empty = batch("");
  EXPECT_EQ(empty.code, 64);
  EXPECT_EQ(empty.err,
            "usage: sbatch [options of sbatch] launch/slurm.sbatch [--mpirun] CONFIG [key=value...]\n");
  EXPECT_EQ(batch("--mpirun").err, empty.err);
  plugins("none pmi2", "exit 0");
  const Outcome plugin = batch("c.yaml");
  EXPECT_EQ(plugin.code, 64);
  expect_says(plugin.err, "error: there is no launch/mpirun to start the ranks with");
  expect_says(plugin.err, "  found:    neither; plugins of this Slurm: none pmi2");
  fs::remove(folder_ / "build/bin/trainer");
  const Outcome program = batch("c.yaml", "PATH=" + (folder_ / "bin") + ":/usr/bin:/bin");
  EXPECT_EQ(program.code, 64);
  expect_says(program.err, "error: there is no build/bin/trainer in " + folder_.path());
  EXPECT_FALSE(fs::exists(folder_ / "srun")) << "nothing was started";
}

TEST_F(Sbatch, MpirunStartsTheRanksWhereSlurmHasNoPmixOrItIsAskedFor) {
  script("launch/mpirun", "echo \"$@\" >" + (folder_ / "mpirun") + "; exit 75");
  const std::string ranks = "-np 6 " + (folder_ / "build/bin/trainer") + " c.yaml seed=3\n";
  const Outcome asked = batch("--mpirun c.yaml seed=3", "SLURM_NTASKS=6");
  EXPECT_EQ(asked.code, 75) << asked.both();
  EXPECT_EQ(asked.both(), "");
  EXPECT_EQ(said("mpirun"), ranks);
  plugins("none pmi2", "exit 0");
  const Outcome without = batch("c.yaml seed=3", "SLURM_NTASKS=6");
  EXPECT_EQ(without.code, 75) << without.both();
  EXPECT_EQ(without.out, "this Slurm has no PMIx plugin (srun --mpi=list): launch/mpirun starts the ranks\n");
  EXPECT_EQ(said("mpirun"), ranks);
  EXPECT_FALSE(fs::exists(folder_ / "srun"));
  // The names after installation.
  script("other/bin/trainer", "");
  script("other/bin/octet-mpirun", "echo installed \"$@\" >" + (folder_ / "mpirun"));
  EXPECT_EQ(batch("c.yaml", "OCTETRUN_BUILD=" + (folder_ / "other") + " SLURM_NTASKS=2").code, 0);
  EXPECT_EQ(said("mpirun"), "installed -np 2 " + (folder_ / "other/bin/trainer") + " c.yaml\n");
}

// Slurm signals the script before its time limit. srun or launch/mpirun signals the ranks.
TEST_F(Sbatch, IsQueuedAgainOnlyWhereTheTimeLimitStoppedIt) {
  const auto stopped = [&](const std::string& signal, const std::string& then,
                           const std::string& environment = "") {
    fs::remove(folder_ / "scontrol");
    plugins("pmix", "trap \"echo told >>" + (folder_ / "told") + "; " + then +
                        "\" USR2; trap \"echo saved >>" + (folder_ / "told") + "\" USR1; touch " +
                        (folder_ / "ready") + "; for i in $(seq 100); do sleep 0.05; [ ! -e " +
                        (folder_ / "end") + " ] || exit 76; done");
    fs::remove(folder_ / "ready");
    return run("export SLURM_JOB_ID=17 SLURM_SUBMIT_DIR=" + folder_.path() + " " + environment + "; " +
               "bash " + kScript + " c.yaml & job=$!; until [ -e ready ]; do sleep 0.02; done; " + signal +
               "; wait $job");
  };
  const Outcome limit = stopped("kill -USR2 $job", "exit 76");
  EXPECT_EQ(limit.code, 0) << limit.both();
  EXPECT_EQ(said("scontrol"), "requeue 17\n");
  EXPECT_EQ(limit.out, "the time limit is near: stopped with a checkpoint, and queued again\n");
  EXPECT_EQ(stopped("kill -USR2 $job", "exit 76", "REQUEUE_CODE=1").code, 76) << "Slurm does not take it";
  const Outcome complete = stopped("kill -USR2 $job", "exit 0");
  EXPECT_EQ(complete.code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "scontrol")) << "it was complete by then";
  fs::remove(folder_ / "told");
  const Outcome asked = stopped("kill -USR1 $job; sleep 0.2; touch end", "exit 76");
  EXPECT_EQ(asked.code, 76) << "who stops it means it: " << asked.both();
  EXPECT_FALSE(fs::exists(folder_ / "scontrol"));
  EXPECT_EQ(said("told"), "saved\n");
  fs::remove(folder_ / "told");
  const Outcome ended = stopped("kill -TERM $job", "exit 76");
  EXPECT_EQ(ended.code, 76) << ended.both();
  EXPECT_EQ(said("told"), "told\n") << "TERM itself would have srun end the ranks";
  EXPECT_FALSE(fs::exists(folder_ / "scontrol"));
}

// --- other scripts

TEST_F(Launch, SupervisorsAreTheTrainerThatIsNamedOrThatOfTheBuild) {
  const std::string supervise = OCTET_SOURCE_DIR "/launch/supervise ";
  script("some/trainer", "echo named \"$@\"; exit 7");
  script("built/bin/trainer", "echo built \"$@\"");
  const std::string launcher = "supervise --launcher " OCTET_SOURCE_DIR "/launch/mpirun ";
  const Outcome named = run(supervise + "--min-ranks 2 -np 4 some/trainer c.yaml");
  EXPECT_EQ(named.code, 7);
  EXPECT_EQ(named.out, "named " + launcher + "--min-ranks 2 -np 4 some/trainer c.yaml\n");
  EXPECT_EQ(run("OCTETRUN_BUILD=built " + supervise + "-np 4 other c.yaml").out,
            "built " + launcher + "-np 4 other c.yaml\n");
  const Outcome none = run("OCTETRUN_BUILD=nowhere " + supervise + "-np 4 other c.yaml");
  EXPECT_EQ(none.code, 64);
  expect_says(none.err, "error: there is no trainer to supervise a run with");
}

// The other scripts also print words of the command line and the environment.
TEST_F(Launch, ScriptsEchoNoControlCharacters) {
  const std::string bad = "\"$(printf 'a\\033]0;b\\007\\r\\302\\233c')\"";
  const std::string scripts = OCTET_SOURCE_DIR "/launch/";
  script("bin/nvidia-smi", "[ \"$1\" = -L ] || printf 'GPU 0\\n'; printf 'GPU 0: a\\033]0;b\\007c\\n'");
  script("bin/srun", "printf 'none \\033]0;b\\007c\\n'");
  script("here/bin/trainer", "");
  const std::string data = "TEACHER=a PROMPT=b ";
  for (const std::string& command : {
           "OCTETRUN_BUILD=here " + scripts + "all -n " + bad + " c.yaml",
           data + scripts + "create_data_h100x8 in out " + bad,
           data + "RANKS=" + bad + " " + scripts + "create_data_h100x8 in out",
           data + "RANKS=4 CUDA_VISIBLE_DEVICES=0," + bad + " " + scripts + "create_data_h100x8 in out",
           "OCTETRUN_BUILD=here RANKS=" + bad + " MODEL=a DATA=b " + scripts + "train_sft_h100x8 out",
           scripts + "setup " + bad,
           scripts + "test " + bad,
           "env -u SLURM_JOB_ID bash " + scripts + "slurm.sbatch " + bad,
           "SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=" + bad + " PATH=/usr/bin:/bin bash " + scripts +
               "slurm.sbatch c",
           "SLURM_JOB_ID=1 OCTETRUN_BUILD=here SLURM_RESTART_COUNT=" + bad + " bash " + scripts +
               "slurm.sbatch c",
           "bash " + scripts + "pbs.sh " + bad,
           "PBS_JOBID=1 PBS_NODEFILE=" + bad + " bash " + scripts + "pbs.sh",
           "PBS_JOBID=1 PBS_NODEFILE=/dev/null OCTETRUN_BUILD=" + bad + " PATH=/usr/bin:/bin bash " +
               scripts + "pbs.sh",
           scripts + "supervise " + bad,
           "OCTETRUN_BUILD=" + bad + " " + scripts + "supervise -np 1 " + bad,
       }) {
    script("bin/call", command);
    const Outcome outcome = run("call");
    EXPECT_NE(outcome.code, 0) << command;
    EXPECT_NE(outcome.both(), "") << command;
    for (const unsigned char c : outcome.both())
      EXPECT_TRUE(c >= 0x20 || c == '\n') << command << ": " << static_cast<int>(c);
    EXPECT_EQ(outcome.both().find("\xc2\x9b"), std::string::npos) << command;
  }
}

TEST(WithoutCuda, ARunOnCpusOfAMachineWithGpusSaysSo) {
  const std::string with = "unshare -m sh -c \"mount -t tmpfs none /proc/driver && ";
  if (shell(with + "true\"").code != 0) GTEST_SKIP() << "needs the right to mount";
  if (shell(OCTET_TRAINER " --version").both().find(", no GPUs,") == std::string::npos)
    GTEST_SKIP() << "a build with CUDA";
  const TemporaryFolder folder("without_cuda");
  const std::string run =
      OCTET_TRAINER " " + Task::get().train(folder / "run", "max_steps=1 overwrite_output_dir=true");
  const std::string warning =
      "computing on the CPU: this program was built without CUDA, and this machine shows";
  const Outcome shown = shell(with + "mkdir /proc/driver/nvidia && exec " + run + "\"");
  EXPECT_EQ(shown.code, 0) << shown.both();
  expect_says(shown.both(), warning);
  expect_says(shown.both(), "build it with -DOCTET_CUDA=ON to compute on GPUs, or set device: cpu");
  for (const Outcome& silent : {shell(with + "exec " + run + "\""),
                                shell(with + "mkdir /proc/driver/nvidia && exec " + run + " device=cpu\"")}) {
    EXPECT_EQ(silent.code, 0) << silent.both();
    EXPECT_EQ(silent.both().find("built without CUDA"), std::string::npos) << silent.both();
  }
}

}  // namespace
}  // namespace octet::test::launch_test
