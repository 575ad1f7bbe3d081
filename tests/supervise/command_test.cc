#include "octet/supervise/job_command.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "support/program.h"

namespace octet::supervise::command_test {
namespace {

// Whether a word is an executable file.
bool executable(const std::string& word) {
  return word == "trainer" || word == "node" || word == "env" || word == "numactl" || word == "/b/trainer";
}

Command parsed(const std::string& words) {
  return parse_command("mpi", split(words, ' '), executable);
}

std::string joined(const Strings& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(Command, FindsTheProgramBehindWhateverTheLauncherTakes) {
  for (const char* words :
       {"-np 4 trainer c.yaml seed=1", "-np 4 trainer train c.yaml seed=1",
        "--map-by node -np 4 --bind-to core trainer c.yaml seed=1", "-np 4 numactl -l trainer c.yaml seed=1",
        "-np 4 -x A=b env A=b trainer c.yaml seed=1"}) {
    const Command command = parsed(words);
    EXPECT_EQ(command.program.front(), "trainer") << words;
    EXPECT_EQ(joined(command.arguments), "c.yaml seed=1") << words;
    EXPECT_EQ(ranks_of(command), 4) << words;
    EXPECT_EQ(command.launcher.front(), "mpi");
  }
  EXPECT_EQ(joined(parsed("/b/trainer seed=1 c.yaml").arguments), "seed=1 c.yaml");
  EXPECT_EQ(joined(parsed("-np 2 --mca a b trainer c.json").words({"x=1"})),
            "mpi -np 2 --mca a b trainer c.json x=1");
  EXPECT_EQ(joined(parsed("-np 2 trainer train c.json").words({"x=1"})),
            "mpi -np 2 trainer train c.json x=1");
}

TEST(Command, RefusesWhatIsNoTraining) {
  for (const char* words : {"", "-np 4", "-np 4 trainer", "-np 4 trainer generate m", "trainer bench",
                            "-np 4 unknown c.yaml", "-np 1 trainer c.yaml : -np 1 trainer c.yaml"}) {
    try {
      parsed(words);
      ADD_FAILURE() << words;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
    }
  }
}

TEST(Command, LooksForProgramsAsAShellDoes) {
  EXPECT_TRUE(is_program("sh"));
  EXPECT_TRUE(is_program("/bin/sh"));
  EXPECT_FALSE(is_program("/bin"));
  EXPECT_FALSE(is_program("no-such-program-of-anybody"));
  EXPECT_FALSE(is_program("4"));
}

TEST(Command, CountsAndChangesRanks) {
  for (const char* option : {"-np", "-n", "--np", "-c"}) {
    Command command = parsed(std::string(option) + " 4 trainer c.yaml");
    ASSERT_EQ(ranks_of(command), 4);
    set_ranks(command, 3);
    EXPECT_EQ(joined(command.words()), std::string("mpi ") + option + " 3 trainer c.yaml");
  }
  EXPECT_EQ(ranks_of(parsed("trainer c.yaml")), std::nullopt);
  for (const char* count : {"x", "0", "-1", "4x", ""})
    EXPECT_EQ(ranks_of(parse_command("mpi", {"-np", count, "trainer", "c.yaml"}, executable)), std::nullopt)
        << count;
}

TEST(Hosts, AreReadFromListsAndFiles) {
  const test::TemporaryFolder folder("hosts");
  test::spill(folder / "hosts",
              "# comment\nnode1 slots=4 # more\n\nnode2\tslots=2\nnode3\nnode4:8\nnode1 slots=1\n");
  const auto hosts = hosts_of(parsed("-np 9 --hostfile " + (folder / "hosts") + " trainer c.yaml"));
  ASSERT_EQ(hosts.size(), 4u);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[0].slots, 5);
  EXPECT_EQ(hosts[1].slots, 2);
  EXPECT_EQ(hosts[2].slots, 1);
  EXPECT_EQ(hosts[3].name, "node4");
  EXPECT_EQ(hosts[3].slots, 8);
  const auto listed = hosts_of(parsed("-np 9 -H a:2,b,b trainer c.yaml"));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[1].slots, 2);
  EXPECT_TRUE(hosts_of(parsed("-np 9 trainer c.yaml")).empty());
  EXPECT_THROW(hosts_of(parsed("--hostfile /nowhere/hosts trainer c.yaml")), Error);
}

TEST(Hosts, PlacesDoNotOverflow) {
  const Command command{.launcher = {"launch/mpirun", "--host", "a:9999999,b:3,a:2,c"},
                        .program = {"trainer"},
                        .arguments = {"config.yaml"}};
  const std::vector<Host> hosts = hosts_of(command);
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0].slots, 9999999);
  Command left = command;
  EXPECT_EQ(leave_out(left, "c"), 9999999);
  left = command;
  EXPECT_EQ(leave_out(left, "a"), 4);
}

TEST(Hosts, OneIsLeftOutAndTheOthersStay) {
  Command command = parsed("-np 8 --host a:4,b.cluster:2,c:2 --bind-to core trainer c.yaml");
  EXPECT_EQ(leave_out(command, "b"), 6);
  EXPECT_EQ(joined(command.words()), "mpi --host a:4,c:2 -np 8 --bind-to core trainer c.yaml");
  EXPECT_EQ(leave_out(command, "nobody"), std::nullopt);
  EXPECT_EQ(leave_out(command, "a"), 2);
  EXPECT_EQ(leave_out(command, "c"), std::nullopt) << "the last one";
  EXPECT_EQ(joined(command.words()), "mpi --host c:2 -np 8 --bind-to core trainer c.yaml");
}

}  // namespace
}  // namespace octet::supervise::command_test
