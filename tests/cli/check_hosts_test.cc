// launch/check-hosts, with shells of this machine as hosts. Stand-ins of commands make the hosts differ.
#include <csignal>
#include <filesystem>

#include "cli/task.h"

namespace octet::test::check_hosts_test {
namespace {

namespace fs = std::filesystem;

class CheckHosts : public testing::Test {
 protected:
  CheckHosts() : folder_("check_hosts") {
    // Called like ssh, with a host and a shell command. The host's folder comes before this machine's
    // commands in PATH.
    script("agent", R"(host=$1; shift; [ "$host" != silent ] || exit 255
PATH=)" + (folder_ / "hosts") +
                        R"(/$host:$PATH HOST=$host exec bash -c "$*")");
    script("program", "exit 1");
  }
  void script(const std::string& name, const std::string& text) {
    const std::string path = folder_ / name;
    fs::create_directories(fs::path(path).parent_path());
    spill(path, "#!/bin/bash\n" + text + "\n");
    fs::permissions(path, fs::perms::owner_all);
  }
  void host(const std::string& name, const std::string& command = "", const std::string& text = "") {
    script("hosts/" + name + "/uname", "echo " + name);
    if (!command.empty()) script("hosts/" + name + "/" + command, text);
  }
  Outcome check(const std::string& lines, const std::string& options = "-n",
                const std::string& of_mpirun = "") {
    spill(folder_ / "hostfile", lines);
    return shell("cd " + (folder_ / ".") + " && OMPI_MCA_plm_rsh_agent=" + (folder_ / "agent") +
                 " " OCTET_SOURCE_DIR "/launch/check-hosts -p " + (folder_ / "program") + " " + options +
                 " hostfile " + of_mpirun);
  }
  /// Returns the lines about a host. The first begins with its name, the others with blanks.
  static std::string part_of(const std::string& host, const std::string& out) {
    const std::string text = "\n" + out;
    const std::size_t begin = text.find("\n" + host + " (");
    if (begin == std::string::npos) return "";
    std::size_t end = text.find('\n', begin + 1);
    while (end + 1 < text.size() && text[end + 1] == ' ') end = text.find('\n', end + 1);
    return text.substr(begin, end - begin);
  }
  TemporaryFolder folder_;
};

TEST_F(CheckHosts, ThatAreAlikeAreFine) {
  host("one");
  host("two");
  const Outcome run = check("# two of them\none slots=1\n\ntwo:1  # as MPICH writes it\n");
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_EQ(run.out.find("WRONG"), std::string::npos) << run.out;
  for (const char* says : {"one (1 ranks)", "answers as two", "2 hosts, 2 ranks: fine"})
    EXPECT_NE(run.out.find(says), std::string::npos) << run.out;
  for (const auto& entry : fs::directory_iterator(folder_ / "."))
    EXPECT_EQ(entry.path().filename().string().find(".octet-check"), std::string::npos) << "left behind";
}

TEST_F(CheckHosts, WhatIsWrongIsNamedWithItsMend) {
  struct Case {
    std::string command, text;  ///< a stand-in: name of the command and its script
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"uname", "echo one", {"WRONG  name", "the same as one's", "a different name"}},
      {"date", "echo $(($(/bin/date +%s) + 60)).0", {"WRONG  clock", "off this host's clock", "chrony"}},
      {"date", "echo $(($(/bin/date +%s) - 60)).0", {"WRONG  clock", "off this host's clock"}},
      {"sha256sum", "echo 0123 x", {"WRONG  program", "another build", "copy this host's program there"}},
      {"sha256sum", "exit 1", {"WRONG  program", "is not there", "install it there"}},
      {"ldd",
       "echo 'libhdf5.so.103 => not found'",
       {"WRONG  libraries", "libhdf5.so.103", "LD_LIBRARY_PATH"}},
      {"mpirun", "echo 'mpirun (Open MPI) 3.0.0'", {"WRONG  mpi", "3.0.0, here ", "the same version"}},
      {"mpirun", "exit 127", {"WRONG  mpi", "none, here "}},
      {"df", "echo; echo a b c 1024 d", {"WRONG  /dev/shm", "1 MiB free", "--shm-size", "WRONG  TMPDIR"}},
      {"df",
       "echo; echo a b c 65535 d",
       {"WRONG  /dev/shm", "63 MiB free"}},  // enough for one rank, not for two
      {"df", "echo; echo a b c 65536 d", {"WRONG  TMPDIR", "ok     /dev/shm   64 MiB free"}},
      {"nvidia-smi", "echo GPU 0: H200", {"WRONG  GPUs", "1 for 2 ranks", "slots=1"}},
      {"nvidia-smi", "echo GPU 0: H200; echo GPU 1: H200", {"ok     GPUs       2"}},
      {"nproc", "echo 1", {"doubt  cores", "1 for 2 ranks", "slots=1 or fewer"}},
  };
  // Each row has its own host. One check sees all wrong hosts, and another all good hosts.
  for (const bool wrong : {true, false}) {
    std::string lines = "one slots=1\n";
    std::vector<std::pair<std::string, const Case*>> rows;
    fs::remove_all(folder_ / "hosts");
    host("one");
    for (const Case& c : cases) {
      if (c.says.front().starts_with("WRONG") != wrong) continue;
      rows.emplace_back("row" + std::to_string(rows.size()), &c);
      host(rows.back().first, c.command, c.text);
      lines += rows.back().first + " slots=2\n";
    }
    const Outcome run = check(lines);
    EXPECT_EQ(run.code, wrong ? 1 : 0) << run.both();
    EXPECT_EQ(run.out.find("fine", run.out.rfind('\n', run.out.size() - 2)) == std::string::npos, wrong)
        << run.out;
    for (const auto& [name, c] : rows) {
      SCOPED_TRACE(c->command + ": " + c->text);
      const std::string found = part_of(name, run.out);
      EXPECT_EQ(found.find("WRONG") != std::string::npos, wrong) << found;
      for (const std::string& says : c->says) EXPECT_NE(found.find(says), std::string::npos) << found;
    }
    EXPECT_EQ(part_of("one", run.out).find("WRONG"), std::string::npos) << run.out;
  }
}

/// Runs before a release only.
class WholeCheckHosts : public CheckHosts {};

// A firewall: connections to some ports fail.
TEST_F(WholeCheckHosts, PortsThatAreNotReachedAreNamedWithWhomFrom) {
  const std::string lines = "one\ntwo\nthree\n";
  const auto blocked =
      [&](const std::string& port) {  // the arguments are: timeout 4 bash -c TRY ADDRESS PORT
        host("one", "timeout", "case $6 in " + port + ") exit 124 ;; esac; exec /usr/bin/timeout \"$@\"");
      };
  host("two");
  host("three");
  blocked("nothing");
  const Outcome open = check(lines);
  EXPECT_EQ(open.code, 0) << open.both();
  EXPECT_NE(open.out.find("connections between 3 hosts\n  ok     tcp        each host reaches the others"),
            std::string::npos)
      << open.out;
  blocked("281[0-9][0-9]");
  const Outcome ranks = check(lines, "-n", "--mca btl_tcp_port_min_v4 28100 --mca btl_tcp_port_range_v4 100");
  EXPECT_EQ(ranks.code, 1) << ranks.both();
  for (const char* says : {"WRONG  tcp        port 281", " of two, for ranks, cannot be reached from one\n",
                           " of three, for ranks, cannot be reached from one\n",
                           "through to the ports 28100-28199", "something is wrong"})
    EXPECT_NE(ranks.out.find(says), std::string::npos) << says << "\n" << ranks.out;
  for (const char* other : {"for mpirun's daemons", " of one, for", "from two", "from three", "ok     tcp"})
    EXPECT_EQ(ranks.out.find(other), std::string::npos) << other << "\n" << ranks.out;
  blocked("*");
  const Outcome all = check(lines);
  EXPECT_EQ(all.code, 1) << all.both();
  for (const char* says :
       {", for mpirun's daemons, cannot be reached from one\n", ", for ranks, cannot be reached from one\n",
        "oob_tcp_dynamic_ipv4_ports 10000-10099", "btl_tcp_port_min_v4 10100"})
    EXPECT_NE(all.out.find(says), std::string::npos) << says << "\n" << all.out;
  blocked("282[0-9][0-9]");
  for (const auto& [environment, options] :
       {std::pair{"OMPI_MCA_oob_tcp_dynamic_ipv4_ports=28200,28201-28299 ", ""},
        {"", "-x A --mca oob_tcp_dynamic_ipv4_ports 28200-28299"}}) {
    spill(folder_ / "hostfile", "one\ntwo\n");
    const Outcome daemons = shell(
        "cd " + (folder_ / ".") + " && " + environment + "OMPI_MCA_plm_rsh_agent=" + (folder_ / "agent") +
        " " OCTET_SOURCE_DIR "/launch/check-hosts -p " OCTET_TRAINER " -n hostfile " + options);
    EXPECT_EQ(daemons.code, 1) << daemons.both();
    EXPECT_NE(daemons.out.find(", for mpirun's daemons, cannot be reached from one\n"), std::string::npos)
        << daemons.out;
    EXPECT_EQ(daemons.out.find("for ranks, cannot"), std::string::npos) << daemons.out;
  }
  EXPECT_EQ(shell("pgrep -f \"^perl -e use Socket\"").out, "") << "nothing listens on";
  blocked("nothing");
  host("two", "perl", "exit 1");
  const Outcome none = check(lines);
  EXPECT_EQ(none.code, 0) << none.both();
  EXPECT_NE(none.out.find("doubt  tcp        not tested to two: it has no perl"), std::string::npos)
      << none.out;
  EXPECT_EQ(none.out.find("ok     tcp"), std::string::npos) << none.out;
}

TEST_F(CheckHosts, WhereMpirunHasNoTextsItsLibraryTellsTheVersion) {
  host("one");
  host("two", "mpirun", "echo -----; echo Sorry!");
  script("hosts/two/ompi_info", "echo Open MPI v3.0.0");
  const Outcome run = check("one\ntwo\n");
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_NE(run.out.find("Open MPI v3.0.0, here "), std::string::npos) << run.out;
}

TEST_F(CheckHosts, AHostThatDoesNotAnswerIsNamed) {
  host("one");
  const Outcome run = check("one\nsilent\n");
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_NE(run.out.find("WRONG  ssh        ended with code 255"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("authorized_keys"), std::string::npos) << run.out;
}

TEST_F(CheckHosts, ARequestToStopEndsItsProgramsAndLeavesNoFile) {
  script("agent", "exec sleep 41");
  spill(folder_ / "hostfile", "one\ntwo\n");
  const Outcome run =
      shell("cd " + (folder_ / ".") + " && OMPI_MCA_plm_rsh_agent=" + (folder_ / "agent") +
            " timeout --preserve-status -s TERM 0.5 " OCTET_SOURCE_DIR "/launch/check-hosts -p " +
            (folder_ / "program") + " hostfile");
  EXPECT_EQ(run.code, 128 + SIGTERM) << run.both();
  EXPECT_EQ(run.both(), "");
  EXPECT_EQ(shell("pgrep -f \"^sleep 41$\"").out, "") << "nothing runs on";
  for (const auto& entry : fs::directory_iterator(folder_ / "."))
    EXPECT_EQ(entry.path().filename().string().find(".octet-check"), std::string::npos) << "left behind";
}

TEST_F(CheckHosts, AFolderOfOneHostAloneIsNamed) {
  host("one");
  // The other host has another working folder.
  script("agent", R"(host=$1; shift; cd /; exec bash -c "sed 's#^PROGRAM=.*#& FOLDER=/#' | PATH=)" +
                      (folder_ / "hosts") + R"(/$host:\$PATH bash -s")");
  const Outcome run = check("one\n");
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_NE(run.out.find("WRONG  folder"), std::string::npos) << run.out;
}

// A firewall drops all messages silently.
TEST_F(WholeCheckHosts, MessagesThatDoNotComeEndInTimeWithThePortsToOpen) {
  const std::string name(trim(shell("uname -n").out));
  host(name);
  script("program", "echo begun; exec sleep 60");
  const Outcome run = check(name + "\n", "-t 2 -p " + (folder_ / "program"));
  EXPECT_EQ(run.code, 1) << run.both();
  for (const char* says :
       {"  begun\n", "WRONG  messages", "within 2 s", "oob_tcp_dynamic_ipv4_ports 10000-10099",
        "btl_tcp_port_min_v4 10100", "btl_tcp_port_range_v4 200", "a job on all of them fails"})
    EXPECT_NE(run.out.find(says), std::string::npos) << says << "\n" << run.out;
  EXPECT_EQ(shell("pgrep -f \"^sleep 60$\"").out, "") << "nothing runs on";
  script("program", "exit 3");
  const Outcome failed = check(name + "\n", "-t 20 -p " + (folder_ / "program"));
  EXPECT_EQ(failed.code, 1) << failed.both();
  EXPECT_EQ(failed.out.find("WRONG"), std::string::npos) << "it was no silence\n" << failed.out;
}

TEST_F(WholeCheckHosts, PathsOfAConfigurationAreLookedForOnEachHost) {
  spill(folder_ / "model/config.json", "{}");
  spill(folder_ / "rows/a.jsonl", "12345");
  spill(folder_ / "rows/b.jsonl", "1");
  spill(folder_ / "c.yaml",
        "model_name_or_path: " + (folder_ / "model") +
            "  # here\ndataset_dir: rows\ndataset: [a.jsonl, on_the_hub]\neval_dataset:\n  - \"b.jsonl\"\n"
            "template: chatml\n");
  host("one");
  const Outcome fine = check("one\n", "-n -c c.yaml");
  EXPECT_EQ(fine.code, 0) << fine.both();
  EXPECT_NE(fine.out.find("ok     paths      4 files and folders of the configuration exist"),
            std::string::npos)
      << fine.out;
  // A host with an older copy of the program and without the model.
  host("two", "wc", "echo 4");
  script("agent", R"(host=$1; shift; PATH=)" + (folder_ / "hosts") +
                      "/$host:$PATH; [ $host = one ] && exec bash -s; "
                      "sed \"s#" +
                      (folder_ / "model") + "#/nowhere/model#\" | PATH=$PATH bash -s");
  const Outcome other = check("one\ntwo\n", "-n -c c.yaml");
  EXPECT_EQ(other.code, 1) << other.both();
  for (const std::string& says :
       {"WRONG  path       " + (folder_ / "model") + " is missing, here folder",
        "WRONG  path       " + (folder_ / "rows/a.jsonl") + " is file of 4 bytes, here file of 5 bytes",
        std::string("a file system that all hosts mount")})
    EXPECT_NE(other.out.find(says), std::string::npos) << says << "\n" << other.out;
  spill(folder_ / "d.yaml", "model_name_or_path: ./none\n");
  const Outcome none = check("one\n", "-n -c d.yaml");
  EXPECT_EQ(none.code, 64) << none.both();
  EXPECT_NE(none.err.find("names a path that does not exist"), std::string::npos) << none.err;
}

TEST_F(CheckHosts, GpusOfAmdAreNamedAsWhatIsNotUsed) {
  for (const auto& [address, kind] :
       {std::pair{"0000:03:00.0", "0x120000"}, {"0000:04:00.0", "0x030000"}, {"0000:00:00.0", "0x060400"}}) {
    spill(folder_ / ("sys/bus/pci/devices/" + std::string(address) + "/vendor"), "0x1002\n");
    spill(folder_ / ("sys/bus/pci/devices/" + std::string(address) + "/class"), std::string(kind) + "\n");
  }
  host("one", "nvidia-smi", "exit 9");
  script("agent", "host=$1; shift; sed s#SYS=/sys#SYS=" + (folder_ / "sys") +
                      "# | PATH=" + (folder_ / "hosts") + "/$host:$PATH bash -s");
  const Outcome run = check("one\n");
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.out.find(
                "doubt  GPUs       2 of AMD, which the program does not use: ranks there compute on the CPU"),
            std::string::npos)
      << run.out;
}

TEST_F(CheckHosts, RanksSpeakWithEachOther) {
  const std::string name(trim(shell("uname -n").out));
  host(name);
  const Outcome run = check(name + " slots=2\n", "-p " OCTET_TRAINER);
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.out.find("messages between 2 ranks"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("GB/s between every two ranks"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("1 hosts, 2 ranks: fine"), std::string::npos) << run.out;
}

TEST_F(WholeCheckHosts, LimitsOfAHostsShellsAreLookedAt) {
  const auto limited = [&](const std::string& limits) {
    script("agent", "host=$1; shift; PATH=" + (folder_ / "hosts") + "/$host:$PATH HOST=$host; " + limits +
                        "; exec bash -c \"$*\"");
    return check("one\n");
  };
  host("one", "nvidia-smi", "echo GPU 0: H200");
  const Outcome low = limited("ulimit -n 1023; ulimit -s 8191; ulimit -l 64");
  EXPECT_EQ(low.code, 1) << low.both();
  for (const char* says : {"WRONG  stack      limited to 8191 KiB\n", "WRONG  files      1023 may be open\n",
                           "doubt  memlock    limited to 64 KiB\n", "GPUs       1\n"})
    EXPECT_NE(low.out.find(says), std::string::npos) << says << low.out;
  const Outcome enough = limited("ulimit -n 1024; ulimit -s 8192");
  EXPECT_EQ(enough.code, 0) << enough.both();
  EXPECT_EQ(enough.out.find("WRONG"), std::string::npos) << enough.out;
  host("one", "nvidia-smi", "exit 9");
  EXPECT_EQ(limited("ulimit -l 64").out.find("memlock"), std::string::npos)
      << "without GPUs it does not matter";
}

TEST_F(CheckHosts, ThatAreFineAloneMayNotRunTogether) {
  host(std::string(trim(shell("uname -n").out)));
  script("program", "[ \"$*\" = verify ] && echo \"rank is alone\"; exit 3");
  const Outcome run = check(std::string(trim(shell("uname -n").out)) + "\n", "-p " + (folder_ / "program"));
  EXPECT_EQ(run.code, 1) << run.both();
  EXPECT_NE(run.out.find("  rank is alone\n"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("1 hosts: each host is fine, but a job on all of them fails, see above\n"),
            std::string::npos)
      << run.out;
}

TEST_F(CheckHosts, WrongCallsAreRefused) {
  const auto refused = [&](const std::string& arguments, const std::string& says) {
    const Outcome run = shell(OCTET_SOURCE_DIR "/launch/check-hosts -p " OCTET_TRAINER " " + arguments);
    EXPECT_EQ(run.code, 64) << arguments << run.both();
    EXPECT_NE(run.err.find(says), std::string::npos) << run.both();
    EXPECT_NE(run.err.find(says.starts_with("launch/") ? "Exit code" : "\n  to do:    "), std::string::npos)
        << run.both();
  };
  spill(folder_ / "empty", "# nobody\n");
  spill(folder_ / "zero", "one\ntwo slots=0\n");
  refused("", "launch/check-hosts [-p PROGRAM]");
  refused("-x", "launch/check-hosts [-p PROGRAM]");
  refused("-t 0 " + (folder_ / "empty"), "-t is not a number of seconds");
  refused("-c " + (folder_ / "none") + " " + (folder_ / "empty"), "the configuration cannot be read");
  refused(folder_ / "none", "the hostfile cannot be read");
  refused(folder_ / "empty", "names no host");
  refused(folder_ / "zero", "zero:2");
  refused("-p " + (folder_ / "none") + " " + (folder_ / "empty"), "the program does not exist");
  refused("-d " + (folder_ / "none") + " " + (folder_ / "empty"), "the folder does not exist");
}

}  // namespace
}  // namespace octet::test::check_hosts_test
