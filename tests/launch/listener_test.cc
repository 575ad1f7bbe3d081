// What mpirun and ssh say becomes one message for each cause, however its bytes arrive.
#include "listener.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octet::launch::listener_test {
namespace {

const std::string kRule(76, '-');

struct Heard {
  std::string text;
  Cause cause = Cause::none;
  std::vector<std::string> ssh;
  bool failed = false;
};

Heard hear(const std::string& bytes, std::size_t piece, bool bar = false) {
  Heard heard;
  Listener listener("-np 2 prog", bar, [&](std::string_view text) { heard.text += text; });
  for (std::size_t at = 0; at < bytes.size(); at += piece) listener.take(bytes.substr(at, piece));
  listener.finish();
  heard.cause = listener.cause();
  heard.ssh = listener.words_of_ssh();
  heard.failed = listener.mpi_has_failed();
  return heard;
}

std::string banner(const std::string& words) {
  return kRule + "\n" + words + "\n" + kRule + "\n";
}

struct Row {
  std::string bytes;  ///< of mpirun
  Cause cause;
  std::string text;  ///< that the user reads; `*` at its end matches any further text
};

TEST(Listener, TellsCausesApart) {
  const std::string aborted = "\"abort\". This may have caused other processes";
  for (const Row& row : std::vector<Row>{
           {"a line\n", Cause::none, "a line\n"},
           {"no end", Cause::none, "no end\n"},
           {"stopped, as asked: step 3\n", Cause::answered, "stopped, as asked: step 3\n"},
           {banner("Primary job terminated normally, but 1 process"), Cause::none, ""},
           {banner("x detected that one or more processes exited with\nnon-zero status"), Cause::told_of_end,
            ""},
           {banner("Sorry! help about:\n    prun:proc-aborted-strsignal"), Cause::lost_a_rank, ""},
           {banner("ORTE was unable to reliably start one or more daemons."), Cause::not_started, ""},
           {"ssh: Could not resolve hostname far: no\n" +
                banner("unable to reliably start one or more daemons"),
            Cause::unknown_host, ""},
           {banner("prterun has exited calling\n" + aborted), Cause::aborted,
            banner("prterun has exited calling\n" + aborted)},
           {banner("PRTE has lost communication with a remote daemon."), Cause::lost_a_host,
            banner("PRTE has lost communication with a remote daemon.")},
           {banner("No executable was specified on the mpirun command line."), Cause::wrong_call,
            "error: mpirun has no program to start\n*"},
           {"/usr/bin/mpirun: Error: unknown option \"--bad\"\nType '/usr/bin/mpirun --help' for usage.\n",
            Cause::wrong_call,
            "error: mpirun refuses an option\n  found:    --bad\n  where:    mpirun -np 2 "
            "prog\n"
            "  to do:    correct it (mpirun --help); options of the program follow its name\n"},
           {"a program: unknown option \"--bad\"\n", Cause::none, "a program: unknown option \"--bad\"\n"},
           {banner("Open MPI tried to fork a new process via the \"execve\" system call but\nfailed.\n\n"
                   "  Local host:        vm\n  Application name:  ./bad\n  Error:             Exec format "
                   "error") +
                banner("mpirun was unable to start the specified application as it encountered an\nerror:\n\n"
                       "Error code: 1\nError name: (null)\nNode: vm\n\nwhen attempting to start process rank "
                       "0."),
            Cause::wrong_call,
            "error: mpirun cannot start a program: the system cannot execute it\n"
            "  expected: a program for this machine, or a script that begins with #!\n"
            "  found:    ./bad: Exec format error\n  where:    mpirun -np 2 prog\n"
            "  to do:    look at the file (file NAME)\n"},
           {banner(
                "x was unable to launch the specified application as it could not\nchange to the specified "
                "working directory:\n\nWorking directory: /none\nNode: far\n\nwhile attempting to start"),
            Cause::wrong_call,
            "error: mpirun cannot start ranks in their working directory\n"
            "  expected: a directory on each host that ranks start on\n"
            "  found:    /none, on far\n  where:    mpirun -np 2 prog\n"
            "  to do:    make it, or name another folder (-wdir)\n"},
           {banner("No nodes are available for this job"), Cause::wrong_call,
            "error: the hostfile names no host that ranks can be started on\n*"},
           {banner("process rank 5 with PID 1 on node n exited on signal 9 (Killed)."), Cause::told_of_end,
            ""},  // `noticed that` is missing: see below
           {"mpirun: Forwarding signal 12 to job\n3 total processes failed to start\n", Cause::none, ""},
           {"[vm:1] 1 more process has sent help message help-x.txt / execve error\n"
            "[vm:1] 12 more processes have sent help message help-x.txt / y\n"
            "[vm:1] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n",
            Cause::none, ""},
           {"[vm:1] PMIX ERROR: OUT-OF-RESOURCE in file dstore_base.c\n", Cause::no_room, ""},
           {"[vm:1] [[1,0],0] Unable to start listen thread\n", Cause::no_processes, ""},
           {"[vm:1] [[1,0],0] ORTE_ERROR_LOG: limit on number of pipes\n", Cause::no_files, ""},
           {"[vm:1] ORTE_ERROR_LOG: Error in file session_dir.c\n", Cause::no_folder, ""},
           {"*** An error occurred in MPI_Init\n", Cause::mpi_failed, "*** An error occurred in MPI_Init\n"},
           {banner("unknown words"), Cause::none, banner("unknown words")},
           {kRule + "\nopen\n", Cause::none, kRule + "\nopen\n"},
       }) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, row.bytes.size()}) {
      const Heard heard = hear(row.bytes, piece);
      SCOPED_TRACE(row.bytes);
      if (row.bytes.find("process rank 5") != std::string::npos) {
        EXPECT_EQ(heard.text, row.bytes) << "unknown texts are passed on";
        continue;
      }
      EXPECT_EQ(heard.cause, row.cause);
      if (row.text.ends_with('*')) {
        EXPECT_TRUE(heard.text.starts_with(row.text.substr(0, row.text.size() - 1))) << heard.text;
        EXPECT_NE(heard.text.find("\n  to do:    "), std::string::npos) << heard.text;
      } else {
        EXPECT_EQ(heard.text, row.text);
      }
    }
  }
}

TEST(OutputFilter, LeavesOneLineOutAndHoldsNothingElse) {
  struct Case {
    std::string bytes, text;
    std::string held;  ///< until the end
  };
  const std::string failed = "2 total processes failed to start\n";
  for (const Case& row : std::vector<Case>{
           {failed, "", ""},
           {"1 total process failed to start\n", "", ""},
           {"an answer\n" + failed + "another\n", "an answer\nanother\n", ""},
           {failed + failed + "x", "x", ""},
           {"x" + failed, "x" + failed, ""},
           {"x " + failed, "x " + failed, ""},
           {" " + failed, " " + failed, ""},
           {"2 total processes failed to start.\n", "2 total processes failed to start.\n", ""},
           {"total processes failed to start\n", "total processes failed to start\n", ""},
           {"an answer without end", "an answer without end", ""},
           {"a\n2 total proc", "a\n", "2 total proc"},
           {"17", "", "17"},
           {"17 t", "", "17 t"},
           {"17 x", "17 x", ""},
           {"\n\n", "\n\n", ""},
           {std::string("a\0b\n", 4), std::string("a\0b\n", 4), ""},
       }) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, row.bytes.size()}) {
      SCOPED_TRACE(row.bytes);
      OutputFilter filter;
      std::string text;
      for (std::size_t at = 0; at < row.bytes.size(); at += piece)
        text += filter.take(row.bytes.substr(at, piece));
      EXPECT_EQ(text, row.text);
      EXPECT_EQ(filter.finish(), row.held);
    }
  }
}

TEST(Listener, SaysWhichRankASignalEnded) {
  const auto ended = [](const std::string& signal) {
    return hear(
        banner("mpirun noticed that process rank 3 with PID 17 on node far exited\non signal " + signal),
        1000);
  };
  EXPECT_EQ(ended("9 (Killed).").text,
            "error: a rank was ended by signal 9 (Killed), and the others with it\n"
            "  where:    rank 3 on far\n"
            "  to do:    check for a lack of memory (dmesg); start the run again: it resumes from its newest "
            "checkpoint\n");
  EXPECT_EQ(ended("12 (User defined signal 2).").text, "") << "asked to stop before it could answer";
  EXPECT_EQ(ended("72 (Unknown).").text, "warning: rank 3 on far ended with code 200\n");
}

TEST(Listener, KeepsTheWordsOfSshForOneMessage) {
  const std::string changed =
      std::string(59, '@') +
      "\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nIT IS POSSIBLE\n"
      "Offending RSA key in /k:3\nHost key verification failed.\r\n";
  const Heard heard = hear(changed + changed + "after\n", 5);
  EXPECT_EQ(heard.ssh,
            (std::vector<std::string>{"Offending RSA key in /k:3", "Host key verification failed."}));
  EXPECT_EQ(heard.text, "after\n");
  EXPECT_EQ(heard.cause, Cause::not_started);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "ssh: connect to host n" + std::to_string(i) + " port 22: refused\n";
  EXPECT_EQ(hear(many, 1000).ssh.size(), 20U);
}

TEST(Listener, DrawsTheBarInPlaceAndBoundsLines) {
  EXPECT_EQ(hear("\rstep 1\n\rstep 2\nend\n", 3, true).text, "\rstep 1\rstep 2end\n");
  EXPECT_EQ(hear("\rstep 1\n", 3).text, "\rstep 1\n");
  const std::string longest(3 << 20, 'x');
  EXPECT_EQ(hear(longest + "\n", 1 << 16).text, longest + "\n");
}

TEST(Listener, WordsOfMpiComeThroughWhenNoCauseIsKnown) {
  const std::string words = banner("It looks like MPI_INIT failed for some reason; your process is");
  EXPECT_EQ(hear(words, 50).text, words);
  EXPECT_TRUE(hear(words, 50).failed);
  EXPECT_EQ(hear("[vm:1] PMIX ERROR: OUT-OF-RESOURCE in file dstore_base.c\n" + words, 50).text, "");
}

TEST(Listener, ShowsControlCharactersOfNames) {
  EXPECT_EQ(hear(banner("The value of a\033]0;b\a cannot be used."), 9).text,
            banner("The value of a\\x1B]0;b\\x07 cannot be used."));
}

}  // namespace
}  // namespace octet::launch::listener_test
