// launch/mpirun: requests to stop or to save reach the ranks.
#include <chrono>
#include <filesystem>

#include "cli/launch_scripts.h"
#include "octet/base/timing.h"

namespace octet::test::mpirun_requests_test {
namespace {

namespace fs = std::filesystem;

TEST_F(Mpirun, SignalsReachTheRanksAsOthersAndTheCodeIsThatOfTheSignal) {
  spill(folder_ / "rank",
        "trap \"echo usr1\" USR1; trap \"echo usr2; exit ${CODE}\" USR2; touch ready; for i in $(seq 200); "
        "do sleep 0.05; done");
  stands_in("mpirun (Open MPI) 4.1.4", "OMPI_COMM_WORLD_RANK=0 bash rank");
  const auto told = [&](const std::string& signals, int code) {
    fs::remove(folder_ / "ready");
    return run("true; CODE=" + std::to_string(code) + " TMPDIR=" + folder_.path() +
               " " OCTET_SOURCE_DIR
               "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; " +
               signals + "wait $job");
  };
  const Outcome saved = told("kill -USR1 $job; sleep 0.3; kill -HUP $job; ", 76);
  EXPECT_EQ(saved.code, 76) << saved.both();
  EXPECT_EQ(saved.out, "usr1\nusr2\n");
  EXPECT_EQ(told("kill -TERM $job; ", 140).code, 143) << "ranks that did not know the signal died of it";
  EXPECT_EQ(told("kill -USR2 $job; ", 140).code, 140);
}

TEST_F(Mpirun, ASecondRequestReachesTheRanks) {
  const std::string rank =
      "n=0; trap \"echo asked; n=\\$((n + 1)); touch asked\\$n; [ \\$n = 2 ] && exit 7\" USR2; touch ready; "
      "while :; do sleep 0.05; done";
  spill(folder_ / "rank", rank);
  for (const char* version : {"mpirun (Open MPI) 4.1.4", "HYDRA build details"}) {
    stands_in(version,
              std::string(version)[0] == 'H' ? "PMI_RANK=0 bash rank" : "OMPI_COMM_WORLD_RANK=0 bash rank");
    const Outcome ended =
        run("rm -f ready asked1 asked2; TMPDIR=" + folder_.path() +
            " " OCTET_SOURCE_DIR
            "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; kill -TERM $job; "
            "until [ -e asked1 ]; do sleep 0.02; done; kill -TERM $job; wait $job");
    EXPECT_EQ(ended.code, 7) << version << ended.both();
    EXPECT_EQ(ended.out, "asked\nasked\n") << version;
  }
}

// A second request may arrive after the ranks have ended, while mpirun is ending.
TEST_F(Mpirun, ASecondRequestDoesNotKillAnMpirunThatIsEnding) {
  spill(folder_ / "rank", "trap \"exit 76\" USR2; touch ready; for i in $(seq 200); do sleep 0.05; done");
  stands_in("mpirun (Open MPI) 4.1.4",
            "trap : USR2; OMPI_COMM_WORLD_RANK=0 bash rank; code=$?; trap - USR2; touch ending; sleep 0.6; "
            "exit $code");
  const Outcome stopped =
      run("true; TMPDIR=" + folder_.path() +
          " " OCTET_SOURCE_DIR
          "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; kill -TERM $job; "
          "until [ -e ending ]; do sleep 0.02; done; kill -TERM $job; wait $job");
  EXPECT_EQ(stopped.code, 76) << stopped.both();
  EXPECT_EQ(stopped.err, "stopped before the first step, as asked: nothing is lost\n")
      << "the rank said nothing";
}

// A request that arrives before the ranks can handle it is kept. If there are no ranks, it ends the start.
TEST_F(Mpirun, ARequestWhileMpirunStartsIsKept) {
  spill(folder_ / "rank",
        "touch loading; sleep 0.7; trap \"echo told; exit 76\" USR2; touch ready; for i in $(seq 200); do "
        "sleep "
        "0.05; done");
  const auto stopped = [&](const std::string& signal, const std::string& moment, const std::string& target) {
    const Outcome outcome =
        run("rm -f begun loading ready; TMPDIR=" + folder_.path() +
            " setsid env --default-signal=INT,HUP " OCTET_SOURCE_DIR
            "/launch/mpirun -np 1 x & job=$!; until [ -e " +
            moment + " ]; do sleep 0.01; done; kill -s " + signal + " -- " + target + "$job; wait $job");
    EXPECT_EQ(outcome.code, 76) << signal << " " << moment << " " << outcome.both();
    EXPECT_EQ(errors_in(outcome), 0) << outcome.err;
    return outcome;
  };
  stands_in("mpirun (Open MPI) 4.1.4",
            "trap : USR2; touch begun; sleep 0.3; OMPI_COMM_WORLD_RANK=0 bash ../rank");
  // A row consists mostly of waiting, so four signals are tested at a time.
  script("row",
         "mkdir $1$2$3; cd $1$2$3 || exit; TMPDIR=$PWD setsid env --default-signal=INT,HUP " OCTET_SOURCE_DIR
         "/launch/mpirun -np 1 x >out 2>err & job=$!; until [ -e $2 ]; do sleep 0.01; done; "
         "kill -s $1 -- $3$job; wait $job; echo $? >code");
  const std::vector<std::string> signals = {"TERM", "INT", "HUP", "USR2"};
  for (const std::string target : {"", "-"}) {
    for (const std::string moment : {"begun", "loading"}) {
      std::string command;
      for (const std::string& signal : signals)
        command += "./row " + signal + " " + moment + " " + target + " & ";
      run("true; " + command + "wait");
      for (const std::string& signal : signals) {
        SCOPED_TRACE(signal + " " + moment + target);
        const std::string row = signal + moment + target;
        EXPECT_EQ(said(row + "/code"), "76\n");
        EXPECT_EQ(said(row + "/out"), "told\n");
        EXPECT_EQ(said(row + "/err").find("error: "), std::string::npos) << said(row + "/err");
      }
    }
  }
  stands_in("mpirun (Open MPI) 4.1.4", "touch begun; exec sleep 30");
  expect_says(stopped("TERM", "begun", "").err, "stopped before the first step, as asked: nothing is lost\n");
  script("bin/mpirun",
         "touch begun; sleep 0.3; echo \"mpirun (Open MPI) 4.1.4\"; [ \"$1\" = --version ] || touch started");
  expect_says(stopped("TERM", "begun", "").err, "stopped before the first step, as asked: nothing is lost\n");
  EXPECT_FALSE(fs::exists(folder_ / "started"));
}

// The guard ends mpirun and its ranks, and removes mpirun's folder.
TEST_F(Mpirun, MpirunAndItsRanksEndWhenTheLauncherIsKilled) {
  spill(folder_ / "rank", "echo $$ >rank_number; touch ready; sleep 60");
  stands_in("mpirun (Open MPI) 4.1.4",
            "echo $$ >number; mkdir -p \"$TMPDIR/ompi.$(uname -n | cut -d . -f 1).$(id -u)/pid.$$\"; "
            "OMPI_COMM_WORLD_RANK=0 bash rank; sleep 60");
  const Outcome outcome =
      run("true; TMPDIR=" + folder_.path() +
          " " OCTET_SOURCE_DIR
          "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; kill -KILL $job; "
          "for i in $(seq 100); do kill -0 $(cat number) 2>/dev/null || kill -0 $(cat rank_number) "
          "2>/dev/null || [ -n \"$(ls -d ompi.*/pid.* 2>/dev/null)\" ] || { echo ended; break; }; sleep 0.1; "
          "done");
  EXPECT_EQ(outcome.out, "ended\n") << outcome.both();
}

// A signal to mpirun itself would end its ranks at once. It is kept pending and becomes a request.
TEST_F(Mpirun, ASignalToMpirunItselfIsARequest) {
  spill(folder_ / "rank",
        "trap \"echo told; exit 76\" USR2; touch ready; for i in $(seq 200); do sleep 0.05; done");
  stands_in("mpirun (Open MPI) 4.1.4", "echo $$ >number; OMPI_COMM_WORLD_RANK=0 bash rank");
  for (const char* signal : {"HUP", "INT", "TERM"}) {
    const Outcome stopped =
        run("rm -f ready; TMPDIR=" + folder_.path() +
            " " OCTET_SOURCE_DIR
            "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; kill -" +
            signal + " $(cat number); wait $job");
    EXPECT_EQ(stopped.code, 76) << signal << stopped.both();
    EXPECT_EQ(stopped.out, "told\n") << signal;
  }
}

// Processes started by ranks hold the pipe. They may write after mpirun's end and may run longer.
TEST_F(Mpirun, LastLinesComeThroughAndNobodyIsWaitedForLong) {
  stands_in("mpirun (Open MPI) 4.1.4", "(sleep 0.5; echo late >&2) >/dev/null & exit 3");
  const Outcome late = start("-np 1 x", "TMPDIR=" + folder_.path());
  EXPECT_EQ(late.code, 3);
  EXPECT_EQ(late.err, "late\n");
  stands_in("mpirun (Open MPI) 4.1.4", "sleep 60 >/dev/null & echo $! >number; echo soon >&2; exit 3");
  const auto began = std::chrono::steady_clock::now();
  const Outcome held = start("-np 1 x", "TMPDIR=" + folder_.path());
  EXPECT_LT(seconds_since(began), 10);
  EXPECT_EQ(held.code, 3);
  EXPECT_EQ(held.err, "soon\n");
  run("kill $(cat number)");
}

// Many signals in close succession.
TEST_F(Mpirun, ItStaysUntilMpirunHasEnded) {
  spill(folder_ / "rank",
        "trap \"echo saved >>saves\" USR1; touch ready; until [ -e end ]; do sleep 0.05; done");
  stands_in("mpirun (Open MPI) 4.1.4", "OMPI_COMM_WORLD_RANK=0 bash rank; exit 3");
  const Outcome ended =
      run("true; TMPDIR=" + folder_.path() +
          " " OCTET_SOURCE_DIR
          "/launch/mpirun -np 1 x & job=$!; until [ -e ready ]; do sleep 0.02; done; for i in "
          "$(seq 300); do kill -USR1 $job || break; sleep 0.003; done; until [ -e saves ]; do sleep "
          "0.05; done; touch end; wait $job");
  EXPECT_EQ(ended.code, 3) << ended.both();
}

}  // namespace
}  // namespace octet::test::mpirun_requests_test
