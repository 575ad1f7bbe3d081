// Who started a process, from tables of variables.
#include "octet/comm/launchers.h"

#include <gtest/gtest.h>

#include <map>

namespace octet::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup(const Variables& variables) {
  return [&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// What torchrun sets for the second of four processes.
const Variables kTorchrun{{"RANK", "1"},
                          {"LOCAL_RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"GROUP_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"}};
// srun -n 4 --mpi=none: the third task.
const Variables kSlurm{{"SLURM_PROCID", "2"},
                       {"SLURM_NTASKS", "4"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_LOCALID", "2"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(Launchers, OfPyTorchAreNamed) {
  const Launched torchrun = launched_without_mpi(lookup(kTorchrun));
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 1);
  EXPECT_EQ(torchrun.size, 4);
  EXPECT_EQ(launched_without_mpi(lookup(with(kTorchrun, {{"ACCELERATE_MIXED_PRECISION", "bf16"}}))).launcher,
            "accelerate launch");
  Variables deepspeed = with(kTorchrun, {{"CROSS_SIZE", "1"}, {"LOCAL_SIZE", "4"}});
  deepspeed.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(launched_without_mpi(lookup(deepspeed)).launcher, "deepspeed");
}

TEST(Launchers, SlurmWithoutPmixIsNamed) {
  const Launched slurm = launched_without_mpi(lookup(kSlurm));
  EXPECT_EQ(slurm.launcher, "srun");
  EXPECT_EQ(slurm.rank, 2);
  EXPECT_EQ(slurm.size, 4);
}

TEST(Launchers, OneProcessIsFree) {
  const auto free = [](const Variables& variables) {
    return launched_without_mpi(lookup(variables)).size == 1;
  };
  EXPECT_TRUE(free({}));
  EXPECT_TRUE(free(with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}})));
  EXPECT_TRUE(free({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "node1"}})) << "a number of nodes";
  EXPECT_TRUE(free({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})) << "a batch script";
  EXPECT_TRUE(free(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})));
  EXPECT_TRUE(free(with(kTorchrun, {{"OCTETRUN_SINGLE", "1"}}))) << "meant so";
  EXPECT_FALSE(free(with(kTorchrun, {{"OCTETRUN_SINGLE", "0"}})));
  EXPECT_FALSE(free(kTorchrun));
}

TEST(Launchers, MpiBetweenMakesRanks) {
  EXPECT_EQ(launched_without_mpi(lookup(with(kSlurm, {{"PMIX_RANK", "2"}}))).size, 1);
  EXPECT_EQ(launched_without_mpi(lookup(with(kTorchrun, {{"OMPI_COMM_WORLD_SIZE", "2"}}))).size, 1);
}

// A launcher of MPI that the program's own MPI does not hear.
TEST(Launchers, SayHowManyThereShouldBe) {
  EXPECT_EQ(claimed_by_launcher(lookup({})).size, 1);
  EXPECT_EQ(claimed_by_launcher(lookup({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}})).size, 3);
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}))).launcher,
            "srun");
  // mpirun inside a step of several tasks counts its own.
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, {{"OMPI_COMM_WORLD_SIZE", "1"}}))).size, 1);
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, {{"OCTETRUN_SINGLE", "1"}}))).size, 1);
}

TEST(Launchers, OneOfTheirProcessesSpeaksAndSaysWhatToType) {
  Launched launched = launched_without_mpi(lookup(kTorchrun));
  EXPECT_EQ(wrong_launcher(launched, {"trainer", "c.yaml"}).what, "") << "the second process is silent";
  launched.rank = 0;
  const Problem problem = wrong_launcher(launched, {"trainer", "c.yaml", "max_steps=3"});
  EXPECT_EQ(problem.code, ExitCode::usage);
  EXPECT_NE(problem.what.find("torchrun started 4 processes"), std::string::npos) << problem.what;
  EXPECT_NE(problem.fix.find("launch/mpirun -np 4 trainer c.yaml max_steps=3"), std::string::npos)
      << problem.fix;
  EXPECT_NE(problem.fix.find("OCTETRUN_SINGLE=1"), std::string::npos);
  Launched slurm = launched_without_mpi(lookup(kSlurm));
  slurm.rank = 0;
  EXPECT_NE(wrong_launcher(slurm, {"trainer", "c.yaml"}).fix.find("srun --mpi=pmix -n 4 trainer c.yaml"),
            std::string::npos);
}

TEST(Launchers, MpirunAloneKillsWhatItIsAskedToStop) {
  EXPECT_TRUE(stops_are_kills(lookup({}), "mpirun"));
  EXPECT_TRUE(stops_are_kills(lookup({}), "orted"));
  EXPECT_TRUE(stops_are_handed_on(lookup({{"OCTETRUN_LAUNCHER", "1"}})));
  EXPECT_FALSE(stops_are_handed_on(lookup({})));
  EXPECT_FALSE(stops_are_kills(lookup({{"OCTETRUN_LAUNCHER", "1"}}), "mpirun"));
  EXPECT_FALSE(stops_are_kills(lookup({}), "bash"));
  EXPECT_FALSE(stops_are_kills(lookup({}), "slurmstepd"));
  EXPECT_NE(parent_process(), "");
}

}  // namespace
}  // namespace octet::comm
