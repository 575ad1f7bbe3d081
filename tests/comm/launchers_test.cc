// Detection of the launcher from tables of environment variables.
#include "octet/comm/launchers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "support/temporary_folder.h"

namespace octet::comm::launchers_test {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup(const Variables& variables) {
  return [&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// The variables of torchrun for the second of four processes.
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

// srun --mpi=pmi2, and --mpi=pmix.
const Variables kPmi2{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}};
const Variables kPmix{{"PMIX_RANK", "2"}, {"PMIX_VERSION", "4.2.2"}};
const ProgramMpi kOpenMpi{.name = "Open MPI 4.1.4", .mpirun = "/opt/open/bin/mpirun"};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Launched unheard(const Variables& variables, bool speaks_pmi2 = true) {
  return launched_without_mpi(lookup(variables), [=] { return speaks_pmi2; });
}

/// Returns the message of the first process.
Problem said_of(Launched launched, const ProgramMpi& mpi = kOpenMpi) {
  launched.rank = 0;
  return wrong_launcher(launched, {"trainer", "c.yaml", "max_steps=3"}, mpi);
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}
void expect_not_in(const std::string& text, const std::string& part) {
  EXPECT_EQ(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Launchers, OfPyTorchAreNamed) {
  const Launched torchrun = unheard((kTorchrun));
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 1);
  EXPECT_EQ(torchrun.size, 4);
  EXPECT_EQ(unheard((with(kTorchrun, {{"ACCELERATE_MIXED_PRECISION", "bf16"}}))).launcher,
            "accelerate launch");
  Variables deepspeed = with(kTorchrun, {{"CROSS_SIZE", "1"}, {"LOCAL_SIZE", "4"}});
  deepspeed.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(unheard((deepspeed)).launcher, "deepspeed");
}

TEST(Launchers, SlurmWithoutPmixIsNamed) {
  const Launched slurm = unheard((kSlurm));
  EXPECT_EQ(slurm.launcher, "srun");
  EXPECT_EQ(slurm.rank, 2);
  EXPECT_EQ(slurm.size, 4);
}

TEST(Launchers, OneProcessIsFree) {
  const auto free = [](const Variables& variables) { return unheard((variables)).size == 1; };
  EXPECT_TRUE(free({}));
  EXPECT_TRUE(free(with(kTorchrun, {{"WORLD_SIZE", "1"}, {"RANK", "0"}})));
  EXPECT_TRUE(free({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "node1"}})) << "a number of nodes";
  EXPECT_TRUE(free({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})) << "a batch script";
  EXPECT_TRUE(free(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})));
  EXPECT_TRUE(free(with(kTorchrun, {{"OCTETRUN_SINGLE", "1"}}))) << "meant so";
  EXPECT_FALSE(free(with(kTorchrun, {{"OCTETRUN_SINGLE", "0"}})));
  EXPECT_FALSE(free(kTorchrun));
}

// Platforms that start one process per host.
TEST(Launchers, HostsWithoutMpiAreRefusedByTraining) {
  for (const Variables& hosts :
       {Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, Variables{{"NODE_RANK", "1"}, {"NNODES", "2"}},
        Variables{{"PET_NODE_RANK", "1"}, {"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "a"}}}) {
    const Launched found = hosts_without_mpi(lookup(hosts));
    ASSERT_EQ(found.size, 2);
    const Problem problem = wrong_launcher(found, {"trainer", "c.yaml"}, {.name = "Open MPI 4.1.4"});
    EXPECT_EQ(problem.code, ExitCode::usage);
    expect_in(problem.what, "2 processes that are not connected");  // each host has its own terminal
    expect_in(problem.fix, "launch/mpirun --hostfile FILE -np 2 trainer c.yaml");
    expect_in(problem.where, "=2");
    for (const Variables& more : {Variables{{"OCTETRUN_SINGLE", "1"}}, Variables{{"PMIX_RANK", "0"}},
                                  Variables{{"OMPI_COMM_WORLD_SIZE", "2"}}})
      EXPECT_EQ(hosts_without_mpi(lookup(with(hosts, more))).size, 1);
  }
  for (const Variables& one :
       {Variables{}, Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Variables{{"WORLD_SIZE", "2"}},
        Variables{{"NNODES", "2"}}, Variables{{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1:4"}}})
    EXPECT_EQ(hosts_without_mpi(lookup(one)).size, 1);
}

TEST(Launchers, MpiBetweenMakesRanks) {
  EXPECT_EQ(unheard(with(kSlurm, kPmix)).size, 1);
  EXPECT_EQ(unheard(with(kSlurm, kPmi2)).size, 1);
  // A script around srun sets PyTorch's variables for the ranks of MPI; or torchrun starts one process per
  // task.
  const Variables named{{"RANK", "2"}, {"LOCAL_RANK", "2"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(unheard(with(with(kSlurm, kPmix), named)).size, 1);
  EXPECT_EQ(unheard(with(with(kTorchrun, kPmix), {{"LOCAL_WORLD_SIZE", "1"}})).size, 1);
}

// srun --ntasks-per-node=1 torchrun --nproc-per-node 4 with PMIx as Slurm's default, or mpirun -np 1
// torchrun: all processes have the same MPI rank.
TEST(Launchers, BelowOneRankOfMpiAreRefused) {
  Variables deepspeed = with(kTorchrun, {{"CROSS_SIZE", "1"}, {"LOCAL_SIZE", "4"}});
  deepspeed.erase("TORCHELASTIC_RUN_ID");
  deepspeed.erase("LOCAL_WORLD_SIZE");
  for (const Variables& mpi :
       {Variables{{"PMIX_RANK", "0"}}, Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
        Variables{{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}}}) {
    for (const Variables& below : {kTorchrun, deepspeed}) {
      const Launched launched = unheard(with(below, mpi));
      EXPECT_EQ(launched.size, 4);
      const Problem problem = said_of(launched);
      expect_in(problem.what, launched.launcher + " started 4 processes");
      expect_in(problem.found, "an outer MPI launcher counts them as one rank");
      expect_in(problem.found, "_RANK=0");
      expect_in(problem.fix, "launch/mpirun -np 4 trainer c.yaml max_steps=3");
      expect_in(problem.fix,
                "started on purpose by a process of " + launched.launcher + ": OCTETRUN_SINGLE=1");
      EXPECT_TRUE(problem.agreed) << "MPI must not be asked: it would wait for ranks that are the same one";
    }
  }
  EXPECT_EQ(unheard(with(with(kTorchrun, {{"OMPI_COMM_WORLD_SIZE", "2"}}), {{"OCTETRUN_SINGLE", "1"}})).size,
            1)
      << "mpirun that a process of torchrun started on purpose";
}

TEST(Launchers, Pmi2IsRefusedWhereTheMpiDoesNotSpeakIt) {
  const Launched launched = unheard(with(kSlurm, kPmi2), false);
  EXPECT_EQ(launched.size, 4);
  const Problem problem = said_of(launched);
  expect_in(problem.found, "PMI-2, which Open MPI 4.1.4 does not use");
  expect_in(problem.fix, "srun --mpi=pmix -n 4 trainer c.yaml max_steps=3");
  EXPECT_EQ(unheard(kPmi2, false).size, 1) << "mpirun of another MPI is left to MPI's own count";
  EXPECT_EQ(unheard(with(with(kSlurm, kPmi2), {{"OMPI_COMM_WORLD_SIZE", "2"}}), false).size, 1)
      << "mpirun inside a step";
}

TEST(Launchers, PluginsTellWhetherAnOpenMpiSpeaksPmi2) {
  const test::TemporaryFolder folder("plugins");
  const auto plugin = [&](const std::string& name) { std::ofstream(folder / ("lib/" + name)) << "x"; };
  EXPECT_TRUE(open_mpi_speaks_pmi2(4, folder / "none")) << "not known";
  std::filesystem::create_directories(folder / "lib");
  plugin("mca_ess_pmi.so");
  EXPECT_TRUE(open_mpi_speaks_pmi2(4, folder.path())) << "no plugin of PMIx at all: it may be built in";
  plugin("mca_pmix_ext3x.so");
  EXPECT_FALSE(open_mpi_speaks_pmi2(4, folder.path()));
  plugin("mca_pmix_s2.so");
  EXPECT_TRUE(open_mpi_speaks_pmi2(4, folder.path()));
  EXPECT_FALSE(open_mpi_speaks_pmi2(5, folder.path()));
}

// An MPI launcher that the program's own MPI does not detect.
TEST(Launchers, SayHowManyThereShouldBe) {
  EXPECT_EQ(claimed_by_launcher(lookup({})).size, 1);
  EXPECT_EQ(claimed_by_launcher(lookup({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}})).size, 3);
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, kPmi2))).launcher, "srun");
  // mpirun inside a step of several tasks sets its own size.
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, {{"OMPI_COMM_WORLD_SIZE", "1"}}))).size, 1);
  EXPECT_EQ(claimed_by_launcher(lookup(with(kSlurm, {{"OCTETRUN_SINGLE", "1"}}))).size, 1);
}

TEST(Launchers, OneOfTheirProcessesSpeaksAndSaysWhatToType) {
  const Launched launched = unheard(kTorchrun);
  const Problem second = wrong_launcher(launched, {"trainer", "c.yaml"}, kOpenMpi);
  EXPECT_EQ(second.what, "") << "the second process is silent";
  EXPECT_TRUE(second.agreed);
  const Problem problem = said_of(launched);
  EXPECT_EQ(problem.code, ExitCode::usage);
  expect_in(problem.what, "torchrun started 4 processes");
  expect_in(problem.where, "RANK=1, LOCAL_RANK=1, WORLD_SIZE=4");
  expect_in(problem.fix, "launch/mpirun -np 4 trainer c.yaml max_steps=3");
  expect_in(problem.fix, "every process should be a separate run: OCTETRUN_SINGLE=1");
  const Problem slurm = said_of(unheard(kSlurm));
  expect_in(slurm.found, "no launcher connects them for this program's MPI (Open MPI 4.1.4)");
  expect_in(slurm.fix, "srun --mpi=pmix -n 4 trainer c.yaml");
}

// The typed command line does not fix the problem.
TEST(Launchers, AnotherMpisMpirunIsNamedBesideTheProgramsOwn) {
  const Launched hydra = claimed_by_launcher(lookup({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}));
  const Problem found = said_of(hydra);
  expect_in(found.found, "of MPICH or Intel MPI, and this program is built with Open MPI 4.1.4");
  expect_in(found.fix,
            "OCTETRUN_MPIRUN_FILE=/opt/open/bin/mpirun launch/mpirun -np 3 trainer c.yaml max_steps=3");
  const Problem missing = said_of(hydra, {.name = "Open MPI 4.1.4", .mpirun = ""});
  expect_in(missing.fix, "the mpirun of Open MPI 4.1.4 on PATH, which was not found here: install it");
  const Launched open =
      claimed_by_launcher(lookup({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  const Problem reverse = said_of(open, {.name = "MPICH 4.0.2", .mpirun = "/usr/bin/mpirun.mpich"});
  expect_in(reverse.found, "an Open MPI, and this program is built with MPICH 4.0.2");
  expect_in(reverse.fix, "OCTETRUN_MPIRUN_FILE=/usr/bin/mpirun.mpich launch/mpirun -np 2 trainer");
}

TEST(Launchers, APmixThatDoesNotFitIsNotMendedByItself) {
  const Launched launched = claimed_by_launcher(lookup(with(kSlurm, kPmix)));
  EXPECT_EQ(launched.pmi, "PMIx");
  const Problem problem = said_of(launched);
  expect_in(problem.found, "by PMIx, which Open MPI 4.1.4 does not use");
  expect_in(problem.where, "SLURM_STEP_NUM_TASKS=4");
  expect_not_in(problem.fix, "--mpi=pmix -n");
  expect_in(problem.fix, "in a batch script, launch/mpirun -np 4 trainer c.yaml");
  expect_in(problem.fix, "srun --mpi=pmix_vN -n 4 trainer c.yaml max_steps=3 with another version of PMIx");
}

class Mpiruns : public testing::Test {
 protected:
  Mpiruns() : folder_("mpiruns") {}
  std::string program(const std::string& name) const {
    namespace fs = std::filesystem;
    const std::string path = folder_ / name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  std::string link(const std::string& name, const std::string& to) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    std::filesystem::create_symlink(folder_ / to, folder_ / name);
    return folder_ / name;
  }
  test::TemporaryFolder folder_;
};

TEST_F(Mpiruns, AreKnownByWhatTheyAreCalledAndWhatLiesBesideThem) {
  program("usr/mpirun.openmpi"), program("usr/mpiexec.hydra"), program("usr/ompi_info");
  program("usr/hydra_pmi_proxy");
  EXPECT_EQ(owner_of_mpirun(link("usr/mpirun", "usr/mpirun.openmpi")), "Open MPI");
  EXPECT_EQ(owner_of_mpirun(link("usr/mpiexec", "usr/mpiexec.hydra")), "MPICH");
  EXPECT_EQ(owner_of_mpirun(program("usr/mpiexec.other")), "") << "either could have brought it";
  EXPECT_EQ(owner_of_mpirun(program("alone/mpirun")), "");
  EXPECT_EQ(owner_of_mpirun(folder_ / "nowhere/mpirun"), "");
  const std::string open = program("open/mpirun"), mpich = program("mpich/mpirun");
  program("open/ompi_info"), program("mpich/mpichversion");
  EXPECT_EQ(owner_of_mpirun(open), "Open MPI");
  EXPECT_EQ(owner_of_mpirun(mpich), "MPICH");
  const std::vector<std::string> folders{folder_ / "alone", folder_ / "mpich", folder_ / "open",
                                         folder_ / "usr"};
  EXPECT_EQ(find_mpirun("Open MPI 4.1.4", folders), open);
  EXPECT_EQ(find_mpirun("MPICH 4.0.2", folders), mpich);
  EXPECT_EQ(find_mpirun("another MPI", folders), "");
  EXPECT_EQ(find_mpirun("MPICH 4.0.2", {folder_ / "usr"}), folder_ / "usr/mpiexec");
}

TEST_F(Mpiruns, ThisProgramKnowsItsOwn) {
  const ProgramMpi mpi = program_mpi();
  EXPECT_TRUE(mpi.name.starts_with("Open MPI ") || mpi.name.starts_with("MPICH ")) << mpi.name;
  EXPECT_TRUE(mpi.name.starts_with(owner_of_mpirun(mpi.mpirun))) << mpi.mpirun;
  EXPECT_FALSE(mpi.mpirun.empty()) << "the tests were started by it, or could be";
}

// The setting of launch/mpirun applies to pipes and to the terminals that mpirun gives its ranks. A file
// keeps every byte.
TEST(Launchers, SayWhetherOutputReachesATerminal) {
  std::fflush(stdout);
  const int saved = ::dup(STDOUT_FILENO);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::dup2(ends[1], STDOUT_FILENO);
  const bool alone = output_reaches_terminal(lookup({}));
  const bool screen = output_reaches_terminal(lookup({{"OCTETRUN_LAUNCHER", "terminal"}}));
  const bool elsewhere = output_reaches_terminal(lookup({{"OCTETRUN_LAUNCHER", "1"}}));
  std::FILE* file = std::tmpfile();
  ::dup2(::fileno(file), STDOUT_FILENO);
  const bool in_file = output_reaches_terminal(lookup({{"OCTETRUN_LAUNCHER", "terminal"}}));
  ::dup2(saved, STDOUT_FILENO);
  std::fclose(file);
  ::close(saved), ::close(ends[0]), ::close(ends[1]);
  EXPECT_FALSE(alone);
  EXPECT_TRUE(screen);
  EXPECT_FALSE(elsewhere);
  EXPECT_FALSE(in_file);
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
}  // namespace octet::comm::launchers_test
