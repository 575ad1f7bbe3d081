// launch/pbs.sh with stand-ins for qstat, qsub and launch/mpirun: the arguments, signals and exit codes.
#include <filesystem>

#include "cli/launch_scripts.h"

namespace octet::test::pbs_test {
namespace {

class Pbs : public Launch {
 protected:
  static constexpr const char* kScript = OCTET_SOURCE_DIR "/launch/pbs.sh";
  Pbs() {
    script("build/bin/trainer", "");
    script("launch/mpirun", "echo \"$@\" >" + (folder_ / "mpirun") + "\nexit ${RANKS_CODE:-0}");
    spill(folder_ / "launch/pbs.sh", "");
    spill(folder_ / "hosts", "node-a\nnode-a\nnode-b\nnode-b\n");
    // A long value is continued on a line that begins with a tab.
    spill(folder_ / "qstat",
          "Job Id: 17.head\n    project = _pbs_project_default\n    Account_Name = physics\n"
          "    Resource_List.select = 2:ncpus=64:ngpus=2:m\n\tpiprocs=2\n"
          "    Resource_List.walltime = 00:00:03\n");
    script("bin/qstat", "[ \"$1 $2\" = '-f 17.head' ] && cat " + (folder_ / "qstat"));
    script("bin/qsub", "printf '%s|' \"$@\" \"$CONFIG\" >" + (folder_ / "qsub") + "; exit ${QSUB_CODE:-0}");
  }
  std::string environment(const std::string& more) const {
    return "export PBS_JOBID=17.head PBS_O_QUEUE=gpus PBS_NODEFILE=" + (folder_ / "hosts") +
           " PBS_O_WORKDIR=" + folder_.path() + " " + more + "; ";
  }
  Outcome batch(const std::string& more) const { return run(environment(more) + "cd /; bash " + kScript); }
};

TEST_F(Pbs, StartsARankForEachLineOfTheHostsAndEndsAsTheyDo) {
  const Outcome ended = batch("CONFIG=\"c.yaml  max_steps=3\" RANKS_CODE=75");
  EXPECT_EQ(ended.code, 75) << ended.both();
  EXPECT_EQ(ended.both(), "");
  EXPECT_EQ(said("mpirun"), "--hostfile " + (folder_ / "hosts") + " -np 4 " +
                                (folder_ / "build/bin/trainer") + " c.yaml max_steps=3\n");
  script("other/bin/trainer", "");
  script("other/bin/octet-mpirun", "echo installed \"$@\" >" + (folder_ / "mpirun"));
  EXPECT_EQ(batch("CONFIG=c.yaml OCTETRUN_BUILD=" + (folder_ / "other")).code, 0);
  expect_says(said("mpirun"), "installed --hostfile ");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "qsub"));
}

TEST_F(Pbs, SaysWhatIsMissing) {
  const auto expect_refused = [&](const Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.code, 64) << outcome.both();
    expect_says(outcome.err, "error: " + part);
    expect_says(outcome.err, "  to do:    ");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "mpirun")) << "nothing was started";
  };
  expect_refused(run(std::string("unset PBS_JOBID; bash ") + kScript), "this is not inside a PBS job");
  expect_refused(batch("CONFIG=c.yaml PBS_NODEFILE=/none"), "the list of hosts of this job cannot be read");
  expect_refused(batch("CONFIG=\" \""), "no configuration is named");
  std::filesystem::remove(folder_ / "launch/mpirun");
  expect_refused(batch("CONFIG=c.yaml"), "there is no launch/mpirun to start the ranks with");
  std::filesystem::remove(folder_ / "build/bin/trainer");
  expect_refused(batch("CONFIG=c.yaml PATH=" + (folder_ / "bin") + ":/usr/bin:/bin"),
                 "there is no build/bin/trainer in " + folder_.path());
}

// PBS does not signal before the limit: the script does. A stop by qdel ends the job.
TEST_F(Pbs, IsSubmittedAgainOnlyIfTheTimeLimitStoppedIt) {
  script("launch/mpirun", "trap 'exit ${STOP_CODE:-76}' USR2; trap 'echo saved >>" + (folder_ / "told") +
                              "' USR1; touch " + (folder_ / "ready") +
                              "; for i in $(seq 200); do sleep 0.02; done");
  const auto stopped = [&](const std::string& margin, const std::string& signals, const std::string& more) {
    std::filesystem::remove(folder_ / "ready");
    std::filesystem::remove(folder_ / "qsub");
    return run(environment("CONFIG=\"c.yaml seed=3\" OCTETRUN_PBS_MARGIN=" + margin + " " + more) + "bash " +
               kScript + " & job=$!; until [ -e ready ]; do sleep 0.02; done; " + signals + " wait $job");
  };
  const Outcome limit = stopped("2", "", "");
  EXPECT_EQ(limit.code, 0) << limit.both();
  EXPECT_EQ(limit.out, "the time limit is near: stopped with a checkpoint, and submitted again\n");
  EXPECT_EQ(said("qsub"),
            "-V|-l|select=2:ncpus=64:ngpus=2:mpiprocs=2|-l|walltime=00:00:03|-q|gpus|-A|physics|" +
                (folder_ / "launch/pbs.sh") + "|c.yaml seed=3|");
  const Outcome refused = stopped("2", "", "QSUB_CODE=1");
  EXPECT_EQ(refused.code, 76) << refused.both();
  EXPECT_EQ(refused.out, "") << "it was not submitted";
  expect_says(refused.err, "could not be submitted again");
  expect_says(refused.err, "  to do:    qsub -v \"CONFIG='c.yaml seed=3'\" -l select=2:");
  const Outcome complete = stopped("2", "", "STOP_CODE=0");
  EXPECT_EQ(complete.code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "qsub")) << "the run is complete";
  const Outcome asked = stopped("-60", "kill -USR1 $job; sleep 0.2; kill -TERM $job;", "");
  EXPECT_EQ(asked.code, 76) << asked.both();
  EXPECT_EQ(said("told"), "saved\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "qsub"));
}

}  // namespace
}  // namespace octet::test::pbs_test
