// launch/mpirun: the arguments that it passes to mpirun, the calls that it refuses, and its messages.
#include <filesystem>

#include "cli/launch_scripts.h"

namespace octet::test::mpirun_test {
namespace {

namespace fs = std::filesystem;

TEST_F(Mpirun, EachMpiIsToldInItsOwnWords) {
  const std::string tell = "echo \"$@\"; env | grep -E \"^(OMPI|PRTE)_|^OCTETRUN_LAUNCHER\" | sort";
  stands_in("mpirun (Open MPI) 4.1.4", tell);
  const auto told = [&](const std::string& words) {
    const Outcome run = start(
        words,
        "env -i PATH=$PATH OMPI_MCA_oob_tcp_keepalive_time=77 OCTETRUN_CACHE=1 OCTETRUN_OVERLAP=2 TMPDIR=" +
            folder_.path());
    EXPECT_EQ(run.code, 0) << run.both();
    return run;
  };
  const Outcome four = told("-x OCTETRUN_OVERLAP -np 3 prog key=value");
  expect_says(four.out, "-x OCTETRUN_CACHE -x OCTETRUN_LAUNCHER -x OCTETRUN_OVERLAP -np 3 prog key=value\n");
  for (const char* set :
       {"OCTETRUN_LAUNCHER=1\n", "OMPI_MCA_rmaps_base_oversubscribe=1\n",
        "OMPI_MCA_hwloc_base_binding_policy=none\n", "OMPI_MCA_mpi_yield_when_idle=1\n",
        "OMPI_MCA_oob_tcp_keepalive_time=77\n", "OMPI_MCA_oob_tcp_keepalive_intvl=5\n",
        "OMPI_MCA_oob_tcp_keepalive_probes=3\n", "OMPI_MCA_btl_vader_single_copy_mechanism=none\n"})
    expect_says(four.out, set);
  EXPECT_EQ(four.out.find("PRTE_MCA"), std::string::npos) << four.out;
  stands_in("prterun (PRRTE) 3.0.2", tell);
  const Outcome five = told("-np 3 prog");
  for (const char* set :
       {"-x OCTETRUN_OVERLAP", "PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe\n",
        "PRTE_MCA_hwloc_default_binding_policy=none\n", "OMPI_MCA_btl_sm_single_copy_mechanism=none\n",
        "OMPI_MCA_reachable=weighted\n", "PRTE_MCA_oob_tcp_keepalive_time=10\n",
        "PRTE_MCA_oob_tcp_keepalive_intvl=5\n", "PRTE_MCA_oob_tcp_keepalive_probes=3\n"})
    expect_says(five.out, set);
  // The version on Ubuntu 26.04, without its help texts.
  stands_in("Sorry! ... /usr/share/prte/help-schizo-ompi.txt: No such file or directory.", tell);
  EXPECT_EQ(told("-np 3 prog").out, five.out);
  stands_in("HYDRA build details", tell);
  const Outcome hydra = told("-np 3 prog");
  EXPECT_EQ(hydra.out.substr(0, hydra.out.find('\n')), "-np 3 prog");
  EXPECT_EQ(hydra.out.find("_MCA_rmaps"), std::string::npos) << hydra.out;
  EXPECT_EQ(hydra.err, "");
  stands_in("SomeMPI 1", tell);
  expect_says(told("-np 3 prog").err, "belongs neither to Open MPI nor to MPICH");
}

// Signals that Slurm sends to the steps of a job also reach the daemons of Open MPI.
TEST_F(Mpirun, DaemonsOnOtherNodesOfAJobAreNotEndedByStops) {
  stands_in("mpirun (Open MPI) 4.1.4", "echo \"${OMPI_MCA_orte_launch_agent-as it is}\"");
  const auto agent = [&](const std::string& environment) {
    return start("-np 2 prog", "TMPDIR=" + folder_.path() + " " + environment).out;
  };
  EXPECT_EQ(agent("SLURM_NNODES=2"), "env --block-signal=HUP,INT,TERM orted\n");
  EXPECT_EQ(agent("SLURM_NNODES=2 OMPI_MCA_orte_launch_agent=/opt/orted"), "/opt/orted\n");
  EXPECT_EQ(agent("SLURM_NNODES=1"), "as it is\n");
  EXPECT_EQ(agent("env -u SLURM_NNODES"), "as it is\n");
  stands_in("mpirun (Open MPI) 5.0.7", "echo \"${PRTE_MCA_prte_launch_agent-as it is}\"");
  EXPECT_EQ(agent("SLURM_NNODES=2"), "env --block-signal=HUP,INT,TERM,USR1,USR2 prted\n");
  EXPECT_EQ(agent("SLURM_NNODES=2 PRTE_MCA_prte_launch_agent=/opt/prted"), "/opt/prted\n");
  EXPECT_EQ(agent("SLURM_NNODES=1"), "as it is\n");
}

// The behaviour of Open MPI 5 if a rank of another host is killed.
TEST_F(Mpirun, ARankThatMpiEndsIsALossToBeStartedAgain) {
  const auto ended = [&](int code) {
    stands_in("mpirun (Open MPI) 5.0.7",
              "exec >&2\nprintf '%078d\\n' 0 | tr 0 -\n"
              "echo 'prterun has exited due to process rank 2 with PID 17 on node far calling'\n"
              "echo '\"abort\". This may have caused other processes in the application to be'\n"
              "printf '%078d\\n' 0 | tr 0 -\nexit " +
                  std::to_string(code));
    return start("-np 4 prog", "TMPDIR=" + folder_.path());
  };
  const Outcome lost = ended(14);
  EXPECT_EQ(lost.code, 75) << lost.both();
  expect_says(lost.err, "error: MPI ended a rank that had lost its connection");
  expect_says(lost.err, "resumes from its newest checkpoint");
  EXPECT_EQ(ended(77).code, 77) << "the program's own";
  EXPECT_EQ(ended(1).code, 1);
}

// Open MPI 5 has another name for this setting.
TEST_F(Mpirun, WhatReachesTheHostsIsToldToEachOpenMpi) {
  stands_in("mpirun (Open MPI) 5.0.7", "echo \"${PRTE_MCA_plm_ssh_agent-as it is}\"");
  const auto agent = [&](const std::string& environment) {
    return start("-np 2 prog", "TMPDIR=" + folder_.path() + " " + environment).out;
  };
  EXPECT_EQ(agent("OMPI_MCA_plm_rsh_agent=/opt/agent"), "/opt/agent\n");
  EXPECT_EQ(agent("OMPI_MCA_plm_rsh_agent=ssh PRTE_MCA_plm_ssh_agent=rsh"), "rsh\n");
  EXPECT_EQ(agent("env -u OMPI_MCA_plm_rsh_agent"), "as it is\n");
}

// With srun launch/mpirun …, each task would start a run.
TEST_F(Mpirun, OneForEachTaskOfAStepIsRefused) {
  stands_in("mpirun (Open MPI) 4.1.4", "echo started");
  const auto task = [&](const std::string& environment) {
    return start("-np 4 prog c.yaml", "TMPDIR=" + folder_.path() + " " + environment);
  };
  const Outcome first = task("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0");
  EXPECT_EQ(first.code, 64) << first.both();
  EXPECT_EQ(errors_in(first), 1) << first.err;
  expect_says(first.err, "error: srun started 4 mpiruns: each would start a run");
  expect_says(first.err, "without srun: " OCTET_SOURCE_DIR "/launch/mpirun -np 4 prog c.yaml\n");
  const Outcome second = task("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1");
  EXPECT_EQ(second.code, 64);
  EXPECT_EQ(second.both(), "") << "one of them speaks";
  for (const char* fine : {"SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", "SLURM_NTASKS=4 SLURM_PROCID=0",
                           "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 OCTETRUN_SINGLE=1"})
    EXPECT_EQ(task(fine).out, "started\n") << fine;
  EXPECT_EQ(task("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 OCTETRUN_SINGLE=0").code, 64);
}

// Ranks started by another MPI's mpirun would each be a separate run.
TEST_F(Mpirun, TheOneOfTheProgramsMpiIsTaken) {
  const auto stand_in = [&](const std::string& name, const std::string& version) {
    script(name, "[ \"$1\" = --version ] && { echo \"" + version + "\"; exit 0; }\necho \"$0\"");
  };
  stand_in("bin/mpirun", "HYDRA build details");
  stand_in("more/mpirun", "mpirun (Open MPI) 4.1.4");
  script("trainer", "echo octet 0.1; echo GNU 12, ${BUILT_WITH:-Open MPI 4.1.4}");
  const std::string both = "export PATH=" + (folder_ / "bin") + ":" + (folder_ / "more") + ":/usr/bin:/bin; ";
  const auto taken = [&](const std::string& environment, const std::string& path = "") {
    return run((path.empty() ? both : path) + environment +
               " " OCTET_SOURCE_DIR "/launch/mpirun -np 1 ./trainer c.yaml");
  };
  EXPECT_EQ(taken("").out, (folder_ / "more/mpirun") + "\n");
  EXPECT_EQ(taken("BUILT_WITH=\"MPICH 4.0.2\"").out, (folder_ / "bin/mpirun") + "\n");
  EXPECT_EQ(taken("OCTETRUN_MPIRUN_FILE=" + (folder_ / "bin/mpirun")).out, (folder_ / "bin/mpirun") + "\n");
  const Outcome no_file = taken("OCTETRUN_MPIRUN_FILE=" + (folder_ / "none"));
  EXPECT_EQ(no_file.code, 64);
  expect_says(no_file.err, "  to do:    name an mpirun (type -a mpirun)");
  // The machine's own mpirun is not in PATH.
  EXPECT_EQ(run("mkdir tools && ln -s $(ls /usr/bin | grep -v ^mpi | sed s#^#/usr/bin/#) tools").code, 0);
  const auto only = [&](const std::string& name) {
    return "export PATH=" + (folder_ / name) + ":" + (folder_ / "tools") + "; ";
  };
  stand_in("two/mpirun", "HYDRA build details");
  stand_in("two/mpirun.openmpi", "mpirun (Open MPI) 4.1.4");
  EXPECT_EQ(taken("", only("two")).out, (folder_ / "two/mpirun.openmpi") + "\n");
  stand_in("named/mpiexec", "mpiexec (OpenRTE) 4.1.4");
  EXPECT_EQ(taken("", only("named")).out, (folder_ / "named/mpiexec") + "\n");
  EXPECT_EQ(taken("BUILT_WITH=\"MPICH 4.0.2\"", only("named")).code, 64);
  const Outcome none = taken("BUILT_WITH=\"MPICH 4.0.2\"", only("more"));
  EXPECT_EQ(none.code, 64) << none.both();
  EXPECT_EQ(errors_in(none), 1) << none.err;
  expect_says(none.err, "expected: an mpirun of MPICH 4.0.2");
  expect_says(none.err, (folder_ / "more/mpirun") + " of Open MPI");
  script("trainer", "exit 127");
  EXPECT_EQ(taken("").out, (folder_ / "bin/mpirun") + "\n") << "what it needs is not known";
}

TEST_F(Mpirun, WithoutOneIsSaid) {
  fs::create_directories(folder_ / "few");
  for (const char* name : {"bash", "env", "head", "grep", "dirname"})
    fs::create_symlink(
        std::string(fs::exists("/usr/bin/" + std::string(name)) ? "/usr/bin/" : "/bin/") + name,
        folder_ / ("few/" + std::string(name)));
  const Outcome none = run("PATH=" + (folder_ / "few") + " bash " OCTET_SOURCE_DIR "/launch/mpirun -np 1 x");
  EXPECT_EQ(none.code, 64) << none.both();
  expect_says(none.err, "error: there is no mpirun");
}

// An mpirun refusal is a wrong call, whatever its exit code: 132 would mean signal 4.
TEST_F(Mpirun, OfAWrongCallSaysWhatToDoAndEndsWith64) {
  const std::string rule = "echo " + std::string(76, '-') + "\n";
  const auto said = [&](const std::string& text, int code) {
    stands_in("mpirun (Open MPI) 4.1.4",
              "exec >&2\n" + rule + "cat <<'EOF'\n" + text + "EOF\n" + rule + "exit " + std::to_string(code));
    const Outcome outcome = start("-np 2 prog", "TMPDIR=" + folder_.path());
    EXPECT_EQ(outcome.code, 64) << outcome.both();
    EXPECT_EQ(errors_in(outcome), 1) << outcome.err;
    return outcome.err;
  };
  const std::string where = "  where:    mpirun -np 2 prog\n";
  EXPECT_EQ(
      said("mpirun was unable to launch the specified application as it could not access\nor execute an "
           "executable:\n\nExecutable: /none\nNode: far\n\nwhile attempting to start process rank 0.\n",
           132),
      "error: mpirun cannot start a program: it is not there, or may not be executed\n"
      "  expected: a program on each host that ranks start on\n"
      "  found:    /none, on far\n" +
          where + "  to do:    check its name, and that every host has it\n");
  EXPECT_EQ(said("No executable was specified on the mpirun command line.\n\nAborting.\n", 1),
            "error: mpirun has no program to start\n"
            "  expected: launch/mpirun -np RANKS build/bin/trainer config.yaml\n" +
                where + "  to do:    name the program after mpirun's options\n");
  EXPECT_EQ(said("Open MPI has detected that a parameter given to a command line\noption does not match the "
                 "expected format:\n\n  Option: np\n  Param:  x\n\nThis is frequently caused by\n",
                 1),
            "error: the value of one of mpirun's options cannot be used\n"
            "  found:    Option: np Param: x\n" +
                where +
                "  to do:    give a value that mpirun --help names, such as a number of ranks for -np\n");
  const std::string file =
      "error: the hostfile cannot be read\n"
      "  expected: a file with a line for each host: NAME slots=RANKS\n"
      "  found:    hosts";
  const std::string mend =
      "\n" + where + "  to do:    name an existing file with such lines; hostfiles/ has examples\n";
  const std::string line(74, '-');
  EXPECT_EQ(
      said("Open RTE was unable to open the hostfile:\n    hosts\nCheck to make sure the path and filename "
           "are correct.\n" +
               line + "\n" + line + "\nAn internal error has occurred in ORTE:\n",
           1),
      file + mend);
  EXPECT_EQ(
      said("Open RTE detected a parse error in the hostfile:\n    hosts\nIt occured on line number 1\n", 1),
      file + " It occured on line number 1" + mend);
}

// The program has already explained its exit code, so mpirun's text about it is dropped. Only mpirun knows
// which signal killed a rank.
TEST_F(Mpirun, BannersBecomeOneMessageAndOtherLinesComeThrough) {
  const std::string rule =
      "echo ------------------------------------------------------------------------------\n";
  const auto killed = [](const char* signal) {
    return std::string(
               "echo \"mpirun noticed that process rank 3 with PID 17 on node far exited\"\n"
               "echo \"on signal ") +
           signal + "\"\n";
  };
  const auto said = [&](const std::string& text, int code) {
    stands_in("mpirun (Open MPI) 4.1.4", "exec >&2\n" + text + "exit " + std::to_string(code));
    const Outcome outcome = start("-np 4 prog", "TMPDIR=" + folder_.path());
    EXPECT_EQ(outcome.code, code) << outcome.both();
    return outcome.err;
  };
  EXPECT_EQ(said("echo own\n" + rule + "echo \"Primary job terminated normally, but 1 process returned\"\n" +
                     rule + rule +
                     "echo \"mpirun detected that one or more processes exited with non-zero "
                     "status\"\n" +
                     rule + "echo \"mpirun: Forwarding signal 12 to job\"\necho end\n",
                 3),
            "own\nend\n");
  EXPECT_EQ(said(rule + killed("9 (Killed).") + rule, 137 - 128),
            "error: a rank was ended by signal 9 (Killed), and the others with it\n"
            "  where:    rank 3 on far\n"
            "  to do:    check for a lack of memory (dmesg); start the run again: it resumes from its newest "
            "checkpoint\n");
  EXPECT_EQ(said(rule + killed("11 (Segmentation fault).") + rule, 11),
            "error: a rank was ended by signal 11 (Segmentation fault), and the others with it\n"
            "  where:    rank 3 on far\n"
            "  to do:    check the limits of memory and stack (ulimit -a); start the run again: it resumes "
            "from its newest checkpoint\n");
  EXPECT_EQ(said(rule + killed("12 (User defined signal 2).") + rule, 12), "") << "asked to stop";
  const std::string sorry = "echo \"Sorry!  You were supposed to get help about:\"\necho \"    ";
  const std::string file = "\"\necho \"But I couldn't open the help file:\"\n";
  EXPECT_EQ(said(rule + sorry + "prun:non-zero-exit" + file + rule, 3), "");
  const std::string aborted = rule + sorry + "prun:proc-aborted-strsignal" + file + rule;
  const std::string which =
      "  where:    mpirun does not say which rank, because its texts are missing here\n";
  const std::string again = "start the run again: it resumes from its newest checkpoint\n";
  EXPECT_EQ(said(aborted, 9), "error: a rank was ended by a signal, and the others with it\n" + which +
                                  "  to do:    check for a lack of memory (dmesg); " + again);
  EXPECT_EQ(said(aborted, 137), "error: a rank was ended by signal 9 (SIGKILL), and the others with it\n" +
                                    which + "  to do:    check for a lack of memory (dmesg); " + again);
  EXPECT_EQ(said(aborted, 139), "error: a rank was ended by signal 11 (SIGSEGV), and the others with it\n" +
                                    which + "  to do:    check the limits of memory and stack (ulimit -a); " +
                                    again);
  EXPECT_EQ(said(aborted, 140), "") << "asked to stop";
  EXPECT_EQ(said(rule + sorry + "prun:exe-not-accessible" + file + rule, 1),
            "error: mpirun cannot start a program: it is not there, or may not be executed\n"
            "  where:    mpirun -np 4 prog\n"
            "  to do:    check its name, and that every host has it\n");
  // The texts of Open MPI 5.
  EXPECT_EQ(
      said(rule +
               "echo \"prterun noticed that process rank 1 with PID 17 on node vm exited on\"\n"
               "echo \"signal 15 (Terminated).\"\n" +
               rule + "echo \"prterun: Forwarding signal 12 to job\"\n" + rule +
               "echo \"prterun detected that one or more processes exited with non-zero status,\"\n" + rule,
           15),
      "error: a rank was ended by signal 15 (Terminated), and the others with it\n"
      "  where:    rank 1 on vm\n"
      "  to do:    start the run again: it resumes from its newest checkpoint\n");
  const std::string line = std::string(78, '-') + "\n";
  EXPECT_EQ(
      said(rule + "echo \"There are not enough slots\"\n" + rule + "echo -----\n" + rule + "echo open\n", 1),
      line + "There are not enough slots\n" + line + "-----\n" + line + "open\n");
}

// Open MPI 5 exits with 0 in this case.
TEST_F(Mpirun, AHostThatIsLostIsNoSuccess) {
  const std::string rule = "printf '%078d\\n' 0 | tr 0 -\n";
  for (const std::string words : {"echo 'PRTE has lost communication with a remote daemon.'\n",
                                  "echo 'Sorry!  You were supposed to get help about:'\necho '    "
                                  "node-died'\necho \"But I couldn't\"\n"}) {
    stands_in("mpirun (Open MPI) 5.0.7", "exec >&2\n" + rule + words + rule + "exit 0");
    const Outcome lost = start("-np 2 prog c.yaml", "TMPDIR=" + folder_.path());
    EXPECT_EQ(lost.code, 75) << lost.both();
    expect_says(lost.err, "error: mpirun has lost a host");
    expect_says(lost.err, "where:    mpirun -np 2 prog c.yaml");
    expect_says(lost.err, "resumes from its newest checkpoint");
  }
  stands_in("mpirun (Open MPI) 5.0.7",
            "exec >&2\necho 'ssh: connect to host far port 22: Connection refused'\n" + rule +
                "echo 'PRTE has lost communication with a remote daemon.'\n" + rule + "exit 255");
  const Outcome refused = start("-np 2 prog c.yaml", "TMPDIR=" + folder_.path());
  EXPECT_EQ(refused.code, 75);
  expect_says(refused.err, "error: mpirun could not start on one of the hosts");
  stands_in("mpirun (Open MPI) 5.0.7", "exec >&2\n" + rule + "echo 'Some other word.'\n" + rule + "exit 0");
  EXPECT_EQ(start("-np 2 prog c.yaml", "TMPDIR=" + folder_.path()).code, 0);
}

// The text of ssh about a host becomes part of one message. Similar lines of a program are passed through.
TEST_F(Mpirun, AHostThatCannotBeReachedIsOneMessageWithTheWordsOfSsh) {
  const std::string rule = "echo " + std::string(76, '-') + "\n";
  const std::string daemons = rule + "echo 'ORTE was unable to reliably start one or more daemons.'\n" + rule;
  struct Row {
    std::string lines, found, error;
    int ends;
  };
  for (const Row& row : {
           Row{"ssh: connect to host far port 22: Connection refused",
               "ssh: connect to host far port 22: Con", "", 255},
           Row{"ssh: Could not resolve hostname far: Name or service not known",
               "ssh: Could not resolve hostname far", "its name does not resolve", 244},
           Row{"me@far: Permission denied (publickey,password).", "me@far: Permission denied (publickey", "",
               255},
           Row{"Connection closed by 10.0.0.1 port 22", "Connection closed by 10.0.0.1", "", 255},
           Row{"kex_exchange_identification: read: Connection reset by peer", "kex_exchange_identification",
               "", 255},
           Row{"No ED25519 host key is known for far and you have requested strict checking.\n"
               "Host key verification failed.\r",
               "requested strict checking., Host key verification failed.", "", 255},
           Row{std::string(59, '@') +
                   "\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nIT IS POSSIBLE\n"
                   "Offending RSA key in /k:3\nHost key verification failed.",
               "Offending RSA key in /k:3, Host key verification failed.", "", 255},
           Row{"bash: line 1: orted: command not found", "orted: command not found", "", 127},
       }) {
    stands_in("mpirun (Open MPI) 4.1.4", "exec >&2\ncat <<'EOF'\n" + row.lines + "\nEOF\n" + daemons +
                                             "exit " + std::to_string(row.ends));
    const Outcome refused = start("--host far -np 2 prog", "TMPDIR=" + folder_.path());
    EXPECT_EQ(refused.code, 75) << refused.both();
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 5) << refused.err;
    EXPECT_TRUE(refused.err.starts_with("error: ")) << refused.err;
    expect_says(refused.err, row.error.empty() ? "could not start on one of the hosts" : row.error);
    for (const char* part : {"  expected: ", "  found:    ", "  where:    mpirun --host far", "  to do:    "})
      expect_says(refused.err, part);
    expect_says(refused.err, row.found);
  }
  stands_in("mpirun (Open MPI) 4.1.4", "echo 'ssh: a word of the program' >&2");
  const Outcome fine = start("-np 2 prog", "TMPDIR=" + folder_.path());
  EXPECT_EQ(fine.code, 0);
  EXPECT_EQ(fine.err, "ssh: a word of the program\n");
}

TEST_F(Mpirun, AProgramThatIsMissingAndACodeOf127AreNoSuccess) {
  const std::string rule = "echo " + std::string(76, '-') + "\n";
  stands_in("mpirun (Open MPI) 4.1.4",
            "exec >&2\n" + rule +
                "printf 'mpirun was unable to find the specified executable file, and therefore\\ndid not "
                "launch the job.\\n\\nNode:       here\\nExecutable: nothing\\n'\n" +
                rule + "kill -ABRT $$");
  const Outcome missing = start("-np 1 nothing", "TMPDIR=" + folder_.path());
  EXPECT_EQ(missing.code, 64) << missing.both();
  EXPECT_EQ(errors_in(missing), 1) << missing.err;
  expect_says(missing.err, "error: mpirun cannot start a program");
  expect_says(missing.err, "  found:    nothing, on here\n");
  stands_in("mpirun (Open MPI) 4.1.4", "exit 127");
  EXPECT_EQ(start("-np 1 x", "TMPDIR=" + folder_.path()).code, 127);
}

TEST_F(Mpirun, ThatFailsOverSeveralProgramsIsToldToGetOne) {
  stands_in("mpirun (Open MPI) 5.0.7", "mkdir \"$TMPDIR/prterun.here.$$.$(id -u)\"; kill -SEGV $$");
  for (const auto& [arguments, said] : {std::pair{"-np 1 x", "check the limits of memory and stack"},
                                        std::pair{"-np 1 x : -np 1 y", "give mpirun one program"}}) {
    const Outcome outcome = start(arguments, "TMPDIR=" + folder_.path());
    EXPECT_EQ(outcome.code, 139) << outcome.both();
    expect_says(outcome.err, "error: mpirun was ended by signal 11");
    expect_says(outcome.err, std::string("  to do:    ") + said);
  }
}

// Shared memory of PMIx 5, which mpirun leaves if a rank is killed.
TEST_F(Mpirun, MemoryThatPmixLeavesIsRemoved) {
  const std::string name = "\"$TMPDIR/pmix-gds-shmem.$(uname -n | cut -d . -f 1)-12.jobdata.";
  for (const char* code : {"exit 1", "kill -KILL $$"}) {
    stands_in("mpirun (Open MPI) 4.1.6", "touch " + name + "$$\" " + name + "1\"; " + code);
    EXPECT_NE(start("-np 1 x", "TMPDIR=" + folder_.path()).code, 0);
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      if (entry.path().filename().string().starts_with("pmix")) left.push_back(entry.path().extension());
    EXPECT_EQ(left, std::vector<std::string>{".1"}) << code;  // the file of another mpirun
  }
}

// Hosts and numbers of ranks that mpirun would misread are refused before it is called.
TEST_F(Mpirun, HostsAndNumbersOfRanksAreCheckedFirst) {
  stands_in("mpirun (Open MPI) 4.1.4", "echo started");
  const auto refused = [&](const std::string& words, const std::string& what) {
    const Outcome outcome = start(words + " true c.yaml", "TMPDIR=" + folder_.path());
    EXPECT_EQ(outcome.code, 64) << words << outcome.both();
    EXPECT_EQ(outcome.out, "") << words;
    EXPECT_EQ(errors_in(outcome), 1) << outcome.err;
    expect_says(outcome.err, what);
    expect_says(outcome.err, "  to do:    ");
  };
  const std::string file = folder_ / "hosts";
  for (const auto& [text, what] :
       {std::pair<std::string, std::string>{"localhost slots=2\r\n", "line ends of Windows (CR LF)"},
        {"localhost slots=2 # the first", "a comment without a line end"},
        {"", "names no host"},
        {"# none\n\n", "names no host"},
        {"localhost slots=many\n", "a host has no number of ranks"},
        {"localhost slots=0\n", "a host has no number of ranks"},
        {"localhost:x\n", "a host has no number of ranks"},
        {"a\n-oProxyCommand=x slots=2\n", "a host name is not valid"},
        {"me@-x\n", "a host name is not valid"},
        {"\xef\xbb\xbflocalhost\n", "a host name has an invalid character"}}) {
    spill(file, text);
    refused("--hostfile " + file + " -np 2", what);
    EXPECT_EQ(run("OMPI_MCA_orte_default_hostfile=" + file + " TMPDIR=" + folder_.path() +
                  " " OCTET_SOURCE_DIR "/launch/mpirun -np 2 true")
                  .code,
              64);
    const Outcome checked =
        run(std::string("bash " OCTET_SOURCE_DIR "/launch/check-hosts -p /bin/true -n ") + file);
    EXPECT_EQ(checked.code, 64) << checked.both();
    expect_says(checked.err, what);
  }
  for (const char* words : {"--host a,-b", "-H -oProxyCommand=x", "--host me@-b"})
    refused(words, "a host name is not valid");
  refused("--host a:many", "a host has no number of ranks");
  refused("--hostfile " + (folder_ / "none"), "the hostfile cannot be read");
  for (const char* words : {"-np 0", "-n 0", "--np -1", "-np two", "-npernode 0", "-np 1 true : -np 0"})
    refused(words, "the number of ranks cannot be used");
  spill(file, "localhost slots = 2 # first\nroot@localhost slots=2 max_slots=4 \t\n[::1]:2\nlast:3");
  for (const std::string& fine :
       {"--hostfile " + file + " -np 2 true", std::string("-np 1 true -np 0 --host -x"),
        std::string("--host a:2,b:* -np 2 true")})
    EXPECT_EQ(start(fine, "TMPDIR=" + folder_.path()).out, "started\n") << fine;
  for (const char* limit : {"-n 20", "-s 64", "-f 1024"}) {
    const Outcome low = run(std::string("ulimit ") + limit + "; TMPDIR=" + folder_.path() +
                            " " OCTET_SOURCE_DIR "/launch/mpirun -np 2 true");
    EXPECT_EQ(low.code, 64) << limit << low.both();
    expect_says(low.err, "error: a limit of the system is too low for mpirun");
  }
}

TEST_F(Mpirun, AHostfileOfAnotherProgramIsTranslated) {
  const std::string file = folder_ / "hosts";
  const std::string show =
      "while [ $# -gt 1 ]; do case $1 in --hostfile | -f) cat \"$2\" ;; esac; shift; done\n"
      "cat ${OMPI_MCA_orte_default_hostfile-/dev/null}";
  const auto read = [&](const std::string& words, const std::string& environment = "") {
    const Outcome run = start(words + " -np 2 true", "TMPDIR=" + folder_.path() + " " + environment);
    EXPECT_EQ(run.code, 0) << run.both();
    return run.out;
  };
  spill(file, "node[01-02]:4 # rack 1\ngpu\n");
  stands_in("mpirun (Open MPI) 4.1.4", show);
  const std::string translated = "node01 slots=4\nnode02 slots=4\ngpu\n";
  EXPECT_EQ(read("--hostfile " + file), translated);
  EXPECT_EQ(read("", "OMPI_MCA_orte_default_hostfile=" + file), translated);
  stands_in("HYDRA build details", show);
  EXPECT_EQ(read("-f " + file), "node01:4\nnode02:4\ngpu\n");
  spill(file, "a slots=4 # not translated for Open MPI\n");
  EXPECT_EQ(read("-f " + file), "a:4\n");
  stands_in("mpirun (Open MPI) 4.1.4", show);
  EXPECT_EQ(read("--hostfile " + file), "a slots=4 # not translated for Open MPI\n");
}

// A terminal interprets control characters, so names with them are printed with escapes.
TEST_F(Mpirun, ControlCharactersInNamesReachNoTerminal) {
  const std::string bad = "a\\033]0;b\\007\\r\\302\\233c", shown = "a\\x1B]0;b\\x07\\x0D\\x9Bc";
  const std::string rule = "echo " + std::string(76, '-') + "\n";
  stands_in("mpirun (Open MPI) 4.1.4", "exec >&2\n" + rule + "printf 'The value of " + bad +
                                           " cannot be used.\\nNode: x\\n'\n" + rule + "exit 5");
  const std::string name = "\"$(printf '" + bad + "')\"";
  spill(folder_ / "hosts", "good slots=1\n");
  const std::string launch = OCTET_SOURCE_DIR "/launch/";
  const std::string tmp = "TMPDIR=" + folder_.path() + " ";
  for (const std::string& command :
       {tmp + launch + "mpirun -np " + name + " prog",
        tmp + launch + "mpirun --hostfile " + name + " -np 2 prog",
        tmp + launch + "mpirun --host " + name + ":x -np 2 prog", tmp + launch + "mpirun -np 2 prog " + name,
        tmp + "OCTETRUN_MPIRUN_FILE=/none/" + name + " " + launch + "mpirun -np 2 prog",
        launch + "check-hosts " + name}) {
    script("bin/call", command);
    const Outcome outcome = run("call");
    EXPECT_NE(outcome.code, 0) << command;
    EXPECT_NE(outcome.both().find(shown), std::string::npos) << command << "\n" << outcome.both();
    for (const unsigned char c : outcome.both())
      EXPECT_TRUE(c >= 0x20 || c == '\n') << command << ": " << static_cast<int>(c);
    EXPECT_EQ(outcome.both().find("\xc2\x9b"), std::string::npos) << command;
  }
}

// MPI's own errors at its start become one message.
TEST_F(Mpirun, AFaultAtMpisStartIsOneMessage) {
  const std::string rule = "--------------------------------------------------------------------------\n";
  struct Case {
    std::string text, what;
    int code;
  };
  for (const Case& one :
       {Case{"[vm:1] PMIX ERROR: OUT-OF-RESOURCE in file src/mca/common/dstore/dstore_base.c at line 664\n"
             "*** An error occurred in MPI_Init\n*** on a NULL communicator\n",
             "MPI has too little space for the files", 74},
        Case{"[vm:1] [[1,0],0] ORTE_ERROR_LOG: The system limit on number of pipes a process can open was "
             "reached in "
             "file a.c at line 1\n",
             "cannot open as many files", 1},
        Case{"[vm:1] [[1,0],0] Unable to start listen thread\n", "as many processes and threads", 1},
        Case{rule + "A call to mkdir was unable to create the desired directory:\n\n  Directory: /x\n" + rule,
             "cannot make its folder", 64},
        Case{rule + "It looks like MPI_INIT failed for some reason; your parallel process is\n" + rule,
             "MPI could not start the ranks", 1}}) {
    stands_in("mpirun (Open MPI) 4.1.4", "cat <<'EOF' >&2\n" + one.text + "EOF\nexit 1");
    const Outcome outcome = start("-np 2 true", "TMPDIR=" + folder_.path());
    EXPECT_EQ(outcome.code, one.code) << outcome.both();
    EXPECT_EQ(errors_in(outcome), 1) << outcome.err;
    expect_says(outcome.err, one.what);
  }
  // An mpirun that waits forever for the other ranks.
  stands_in("mpirun (Open MPI) 4.1.4",
            "echo '[vm:1] Local abort before MPI_INIT completed completed successfully' >&2; sleep 60");
  const Outcome hung = start("-np 2 true", "TMPDIR=" + folder_.path());
  EXPECT_EQ(hung.code, 1) << hung.both();
  expect_says(hung.err, "error: MPI could not start the ranks");
  stands_in("mpirun (Open MPI) 4.1.4", "kill -SEGV $$");
  const Outcome killed = start("-np 2 true", "TMPDIR=" + folder_.path());
  EXPECT_EQ(killed.code, 139);
  expect_says(killed.err, "error: mpirun was ended by signal 11");
}

}  // namespace
}  // namespace octet::test::mpirun_test
