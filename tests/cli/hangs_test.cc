// A component that hangs outside of collectives ends the run, and the message names it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "cli/task.h"

namespace octet::test::hangs_test {
namespace {

namespace fs = std::filesystem;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Hangs, ADiskThatDoesNotAnswerEndsALoneRank) {
  const TemporaryFolder folder("hang");
  for (const auto& [beside, what] : {std::pair{"false", "the saving of a checkpoint"},
                                     std::pair{"true", "the writing of a checkpoint during the steps"}}) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome run =
        shell("LD_PRELOAD=" OCTET_FLIPPING_DISK " BAD_DISK_HANG=checkpoint-5. " OCTET_TRAINER " " +
              Task::get().train(folder / "run", std::string("ddp_timeout=2 save_async=") + beside));
    EXPECT_EQ(run.code, 75) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    // A step that waits for the previous checkpoint may report first.
    const bool waits = run.err.find("the wait for a checkpoint does not finish") != std::string::npos;
    EXPECT_TRUE(waits || run.err.find(std::string(what) + " does not finish") != std::string::npos)
        << run.err;
    EXPECT_LT(seconds_since(start), 60);
  }
  // The lock is free, and the next start resumes.
  expect_success(trainer(Task::get().train(folder / "run", "max_steps=3")));
}

TEST(Hangs, ARankThatDoesNotComeToMpiEndsTheOthers) {
  const TemporaryFolder folder("never");
  const auto start = std::chrono::steady_clock::now();
  const Outcome run = two_ranks(
      "env OCTETRUN_START_TIMEOUT=3 " OCTET_TRAINER " " + Task::get().train(folder / "run"), "sleep 100");
  EXPECT_NE(run.code, 0);
  EXPECT_NE(run.err.find("start does not finish"), std::string::npos) << run.both();
  EXPECT_LT(seconds_since(start), 60);
}

TEST(Hangs, APipeInPlaceOfAFileIsNotWaitedFor) {
  const TemporaryFolder folder("pipes");
  ASSERT_EQ(::mkfifo((folder / "rows.jsonl").c_str(), 0600), 0);
  const Outcome run = trainer(Task::get().train(folder / "run", "dataset=" + (folder / "rows.jsonl")));
  EXPECT_NE(run.code, 0);
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(trainer("compare /dev/zero").code, 0);
}

// The stand-in for mpirun ends like Open MPI's after the loss of a host. Open MPI 5 may leave its folder
// then.
TEST(Launcher, ACodeThatIsNoSignalIsNotCalledOne) {
  const std::string line(76, '-');
  for (const std::string version : {"4.1.4", "5.0.7"}) {
    SCOPED_TRACE(version);
    const TemporaryFolder folder("codes");
    spill(folder / "bin/mpirun",
          "#!/bin/sh\n[ \"$1\" = --version ] && { echo \"mpirun (Open MPI) " + version +
              "\"; exit 0; }\nmkdir " + (folder / "ompi.$$") + "\nexec >&2\necho " + line +
              "\necho \"mpirun noticed that process rank 2 with PID 17 on node far exited on "
              "signal 77 (Unknown signal 77).\"\necho " +
              line + "\nexit 205\n");
    fs::permissions(folder / "bin/mpirun", fs::perms::owner_all);
    const Outcome run = shell("TMPDIR=" + folder.path() + " PATH=" + (folder / "bin") +
                              ":$PATH " OCTET_SOURCE_DIR "/launch/mpirun -np 1 true");
    EXPECT_EQ(run.code, 75) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find("mpirun ended with code 205"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("rank 2 on far ended with code 205"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("signal"), std::string::npos) << run.err;
  }
}

// The stand-in for mpirun is refused by a host, with the message of Open MPI 4. Nothing has started that
// could be resumed.
TEST(Launcher, AHostThatRefusesTheStartIsToldToBeLookedFor) {
  const std::string line(76, '-');
  const TemporaryFolder folder("refused");
  spill(folder / "bin/mpirun",
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo \"mpirun (Open MPI) 4.1.4\"; exit 0; }\nexec >&2\n"
        "echo \"ssh: connect to host far port 22: Connection refused\"\necho " +
            line +
            "\necho \"ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n* "
            "not "
            "finding the required libraries\"\necho " +
            line + "\nexit 255\n");
  fs::permissions(folder / "bin/mpirun", fs::perms::owner_all);
  spill(folder / "mine", "far slots=4\n");
  const Outcome run = shell("cd " + folder.path() + " && PATH=" + (folder / "bin") +
                            ":$PATH " OCTET_SOURCE_DIR "/launch/mpirun --hostfile mine -np 4 true");
  EXPECT_EQ(run.code, 75) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("connect to host far port 22"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("mpirun could not start on one of the hosts"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("mpirun --hostfile mine -np 4 true"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find(OCTET_SOURCE_DIR "/launch/check-hosts HOSTFILE"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("checkpoint"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("required libraries"), std::string::npos) << run.err;
}

// Killed between the start of mpirun and the next step, or before its cleanup. The stand-in for mpirun is
// killed and leaves its folder and a rank, which Open MPI 5 does not end.
TEST(Launcher, NothingIsLeftOfAJobWhoseLauncherIsKilled) {
  struct Version {
    std::string told, session, variable;
  };
  const Version versions[] = {
      {"mpirun (Open MPI) 4.1.4", "ompi.$(uname -n | cut -d . -f 1).$(id -u)/pid.$$",
       "OMPI_MCA_orte_jobfam_session_dir"},
      {"mpirun (Open MPI) 5.0.7", "prterun.$(uname -n).$$.$(id -u)", "PMIX_SERVER_TMPDIR"},
      {"Sorry! /usr/share/prte/help-schizo-ompi.txt: No such file or directory.", "ompi.$$",
       "PMIX_SERVER_TMPDIR"}};
  for (const auto& [version, session, variable] : versions) {
    for (const std::string before : {"job=\\$!", "\"kill -0 \"*"}) {
      SCOPED_TRACE(version + before);
      const TemporaryFolder folder("launcher_killed");
      spill(folder / "bin/mpirun",
            "#!/bin/sh\n[ \"$1\" = --version ] && { echo \"" + version +
                "\"; exit 0; }\nsession=" + (folder / session) + "\nmkdir -p $session\n" + variable +
                "=$session setsid sleep 77 >/dev/null 2>&1 &\necho $! >" + (folder / "rank") + "\ntouch " +
                (folder / "began") + "\nsleep 0.5\nkill -KILL $$\n");
      fs::permissions(folder / "bin/mpirun", fs::perms::owner_all);
      spill(folder / "trap",
            "trap 'case $BASH_COMMAND in " + before + ") sleep 1; kill -KILL $$ ;; esac' DEBUG\n");
      const Outcome run =
          shell("BASH_ENV=" + (folder / "trap") + " TMPDIR=" + folder.path() + " PATH=" + (folder / "bin") +
                ":$PATH " OCTET_SOURCE_DIR "/launch/mpirun -np 1 true");
      EXPECT_EQ(run.code, 137) << run.both();
      const auto left = [&folder] {
        std::vector<std::string> names;
        for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
          const std::string name = entry.path().filename().string();
          const bool of_one_job =
              name.starts_with("ompi.") && name.find_first_not_of("0123456789", 5) == std::string::npos;
          if (name.starts_with("pid.") || name.starts_with("prterun.") || of_one_job)
            names.push_back(entry.path().string());
        }
        return names;
      };
      for (int i = 0; i < 100 && (!fs::exists(folder / "began") || !left().empty()); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_TRUE(fs::exists(folder / "began"));
      EXPECT_EQ(left(), std::vector<std::string>());
      // It may be a zombie until its new parent reads its exit code.
      EXPECT_EQ(
          shell("grep -s ^State: /proc/$(cat " + (folder / "rank") + ")/status | grep -v \"[ZX] (\"").out, "")
          << "the rank";
    }
  }
}

// The stand-in for mpirun prints the PMIx store that it was given.
TEST(Launcher, AStoreThatHangsTheStartOnSeveralHostsIsLeftOut) {
  const TemporaryFolder folder("store");
  spill(folder / "bin/mpirun",
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo \"mpirun (Open MPI) 4.1.4\"; exit 0; }\n"
        "echo \"store: ${PMIX_MCA_gds-none}\"\n");
  fs::permissions(folder / "bin/mpirun", fs::perms::owner_all);
  spill(folder / "hosts", "one slots=2\ntwo slots=2\n");
  const auto store = [&](const std::string& set, const std::string& words) {
    return shell("cd " + folder.path() + " && PATH=" + (folder / "bin") + ":$PATH PMIX_MCA_gds=" + set +
                 " " OCTET_SOURCE_DIR "/launch/mpirun " + words + " -np 1 true");
  };
  for (const char* hosts : {"--hostfile hosts", "-H one:2,two:2", "--host one", "--machinefile hosts"}) {
    const Outcome run = store("hash", hosts);
    EXPECT_NE(run.out.find("store: none"), std::string::npos) << hosts << run.both();
    EXPECT_NE(run.err.find("PMIX_MCA_gds=hash is not passed on"), std::string::npos) << hosts << run.err;
  }
  EXPECT_NE(store("hash SLURM_NNODES=2", "").out.find("store: none"), std::string::npos)
      << "of an allocation";
  EXPECT_NE(store("hash SLURM_NNODES=1", "").out.find("store: hash"), std::string::npos) << "one host";
  EXPECT_NE(store("hash", "-x A=/hosts/one").out.find("store: hash"), std::string::npos) << "a word like it";
  const Outcome unset =
      shell("unset PMIX_MCA_gds; PATH=" + (folder / "bin") +
            ":$PATH " OCTET_SOURCE_DIR "/launch/mpirun -np 1 ./hash/trainer output_dir=runs/host1");
  EXPECT_EQ(unset.code, 0) << unset.both();
  EXPECT_EQ(unset.err, "");
  EXPECT_NE(store("ds21", "-H one").out.find("store: ds21"), std::string::npos) << "another store";
}

}  // namespace
}  // namespace octet::test::hangs_test
