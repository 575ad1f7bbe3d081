// Findings about hosts, from their answers.
#include "check/host_judge.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace octet::launch::host_judge_test {
namespace {

const std::string kGood =
    "clock 100.5\nname one\nprogram 12ab\nlibraries \nmpi mpirun (Open MPI) 4.1.4\nsees yes\nstack 8192\n"
    "memlock unlimited\nfiles 1024\nshm 65536\ntmp 262144\ncores 2\ngpus 0\namd 0\npath0 folder\n"
    "path1 file of 5 bytes\n";

std::string with(const std::string& line) {
  return line + "\n" + kGood;  // the first line of a word counts
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += lines_of(finding);
  return text;
}

HostReply reply_with(const std::string& text) {
  return {.answer = HostAnswer(text), .began = 100, .ended = 101};
}

HostJudge new_judge(std::vector<std::string> paths = {"/m", "/d"}) {
  return HostJudge({.program = "/p", .folder = "/f", .token = "t", .paths = std::move(paths)},
                   HostAnswer(kGood), "ssh -x");
}

TEST(HostAnswer, HasTheFirstValueOfAWord) {
  const HostAnswer answer(
      "Welcome!\nname one two\nname three\nnothing\nlibraries \nshm 12\nlock unlimited\n");
  struct Row {
    std::string word, value;
    std::optional<std::int64_t> number;
  };
  for (const Row& row : std::vector<Row>{{"name", "one two", {}},
                                         {"nothing", "", {}},
                                         {"libraries", "", {}},
                                         {"shm", "12", 12},
                                         {"lock", "unlimited", {}},
                                         {"cores", "", {}}}) {
    EXPECT_EQ(answer.value(row.word), row.value) << row.word;
    EXPECT_EQ(answer.number(row.word), row.number) << row.word;
  }
  EXPECT_FALSE(HostAnswer("a -1").number("a"));
  EXPECT_FALSE(HostAnswer("a 1e3").number("a"));
  EXPECT_FALSE(HostAnswer("a 99999999999999999999").number("a"));
}

TEST(HostJudge, PrintsAGoodHostInTheseLines) {
  EXPECT_EQ(text_of(new_judge().judge({.name = "one", .slots = 2}, reply_with(kGood))),
            R"(  ok     ssh        answers as one
  ok     clock      within 2 s of this host's clock
  ok     program    the same as here
  ok     mpi        mpirun (Open MPI) 4.1.4
  ok     folder     /f is the same folder
  ok     paths      2 files and folders of the configuration exist
  ok     /dev/shm   64 MiB free
  ok     TMPDIR     256 MiB free
  ok     cores      2, no GPU
)");
}

// Each row changes one line of a good answer. The host has two ranks.
TEST(HostJudge, NamesAFaultWithWhatToDo) {
  const std::string copy = "put model and data on a file system that all hosts mount at the same place";
  struct Row {
    std::string line;
    std::vector<std::string> says;
  };
  for (const Row& row : std::vector<Row>{
           {"clock 97.9",
            {"  WRONG  clock      2.1 s off this host's clock\n                    to do: set it by chrony"}},
           {"clock 103.1", {"WRONG  clock      2.1 s off"}},
           {"clock ", {"WRONG  clock      100.0 s off"}},
           {"program missing", {"WRONG  program    /p is not there", "install it there"}},
           {"program 34cd", {"WRONG  program    /p is another build", "copy this host's program there"}},
           {"libraries liba.so libb.so ",
            {"WRONG  libraries  not found: liba.so libb.so", "LD_LIBRARY_PATH"}},
           {"mpi none", {"WRONG  mpi        none, here mpirun (Open MPI) 4.1.4\n", "the same version"}},
           {"sees no",
            {"WRONG  folder     /f is another folder than on this host", "mount at the same place"}},
           {"path0 missing", {"WRONG  path       /m is missing, here folder\n", copy}},
           {"path0 ", {"WRONG  path       /m is unknown, here folder\n"}},
           {"path1 file of 4 bytes", {"WRONG  path       /d is file of 4 bytes, here file of 5 bytes\n"}},
           {"shm 65535", {"WRONG  /dev/shm   63 MiB free", "--shm-size"}},
           {"tmp 262143", {"WRONG  TMPDIR     255 MiB free", "TMPDIR elsewhere"}},
           {"stack 8191", {"WRONG  stack      limited to 8191 KiB", "ulimit -s"}},
           {"files 1023", {"WRONG  files      1023 may be open", "ulimit -n"}},
           {"gpus 1", {"WRONG  GPUs       1 for 2 ranks", "set slots=1 for this host"}},
       }) {
    const auto findings = new_judge().judge({.name = "one", .slots = 2}, reply_with(with(row.line)));
    EXPECT_TRUE(has_fault(findings)) << row.line;
    const std::string text = text_of(findings);
    for (const std::string& says : row.says) EXPECT_NE(text.find(says), std::string::npos) << says << text;
    EXPECT_EQ(text.find("WRONG"), text.rfind("WRONG")) << text;
    EXPECT_EQ(text.find("ok     paths") == std::string::npos, row.line.starts_with("path")) << text;
  }
}

TEST(HostJudge, DoubtsAndLimitsThatJustSufficeAreNoFaults) {
  struct Row {
    std::string line, says;
  };
  for (const Row& row : std::vector<Row>{
           {"clock 98.0", "ok     clock"},
           {"clock 97.96", "ok     clock"},
           {"clock 103.0", "ok     clock"},
           {"stack unlimited", "ok     cores"},
           {"shm ", "ok     /dev/shm   0 MiB free\n"},
           {"cores 1",
            "  doubt  cores      1 for 2 ranks, and no GPU\n                    to do: set slots=1 or "
            "fewer\n"},
           {"cores ", "ok     cores      , no GPU\n"},
           {"gpus 2", "ok     GPUs       2\n"},
           {"amd 2", "doubt  GPUs       2 of AMD, which the program does not use"},
           {"gpus 2\nmemlock 8388607", "doubt  memlock    limited to 8388607 KiB"},
       }) {
    const auto findings = new_judge().judge({.name = "one", .slots = 2}, reply_with(with(row.line)));
    EXPECT_FALSE(has_fault(findings)) << row.line;
    EXPECT_NE(text_of(findings).find(row.says), std::string::npos) << row.says << text_of(findings);
  }
  for (const char* line :
       {"memlock 64", "gpus 2\nmemlock 8388608", "gpus 2\nmemlock unlimited", "gpus 2\namd 2"}) {
    const auto findings = new_judge().judge({.name = "one", .slots = 2}, reply_with(with(line)));
    EXPECT_EQ(text_of(findings).find("doubt"), std::string::npos) << text_of(findings);
  }
  EXPECT_EQ(text_of(new_judge({}).judge({.name = "one"}, reply_with(kGood))).find("paths"),
            std::string::npos);
}

TEST(HostJudge, ThisHostMayLackItsProgramsToo) {
  HostJudge judge({.program = "/p", .folder = "/f", .token = "t", .paths = {}},
                  HostAnswer("program missing\n"), "ssh");
  const std::string text = text_of(judge.judge({.name = "one"}, reply_with(with("program missing"))));
  EXPECT_NE(text.find("WRONG  program    /p is not there"), std::string::npos) << text;
  EXPECT_NE(text.find(", here none\n"), std::string::npos) << text;
}

TEST(HostJudge, RefusesANameThatAnotherHostHas) {
  HostJudge judge = new_judge();
  EXPECT_FALSE(has_fault(judge.judge({.name = "a"}, reply_with(kGood))));
  EXPECT_FALSE(has_fault(judge.judge({.name = "b"}, reply_with(with("name two")))));
  const std::string text = text_of(judge.judge({.name = "c"}, reply_with(kGood)));
  EXPECT_NE(text.find("  WRONG  name       the same as a's: ranks of both would count as one node\n"
                      "                    to do: give every host a different name\n"),
            std::string::npos)
      << text;
}

TEST(HostJudge, ExplainsAHostThatDidNotAnswer) {
  const std::string name =
                        "correct the name in the hostfile, or add it to DNS or /etc/hosts (getent hosts far)",
                    network =
                        "check that far runs, that the network reaches it (ping), and that sshd listens",
                    question = "make `ssh -x far true` work without a question (a key in authorized_keys";
  struct Row {
    std::string errors;
    int code;
    bool is_late;
    std::string found, fix;
  };
  for (const Row& row : std::vector<Row>{
           {"", 255, false, "ended with code 255", question},
           {"far: Permission denied (publickey).", 255, false, "far: Permission denied (publickey).",
            question},
           {"ssh: Could not resolve hostname far", 255, false, "ssh: Could not resolve hostname far", name},
           {"Name or service not known", 1, false, "Name or service not known", name},
           {"first\nconnect: Connection timed out", 255, false, "first connect: Connection timed out",
            network},
           {"No route to host", 255, false, "No route to host", network},
           {"Network is unreachable", 255, false, "Network is unreachable", network},
           {"Connection refused", 255, false, "Connection refused", network},
           {"\x1b", 255, false, "\\x1B", question},
           {"Name or service not known", 143, true, "no answer within 30 s", network},
           {"", 0, true, "no answer within 30 s", network},
       }) {
    HostReply reply = reply_with(kGood);
    reply.errors = row.errors;
    reply.code = row.code;
    reply.is_late = row.is_late;
    const std::string text = text_of(new_judge().judge({.name = "far"}, reply));
    EXPECT_TRUE(
        text.starts_with("  WRONG  ssh        " + row.found + "\n                    to do: " + row.fix))
        << text;
    EXPECT_EQ(text.find("ok "), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace octet::launch::host_judge_test
