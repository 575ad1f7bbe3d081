// The arguments of launch/mpirun.
#include "call.h"

#include <gtest/gtest.h>

#include <string>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::launch::call_test {
namespace {

Words words(const std::string& line) {
  return line.empty() ? Words{} : split(line, ' ');
}

// The number of ranks, or what the message says.
std::string used(const std::string& line, const Environment& environment = {}) {
  try {
    return std::to_string(require_usable_call(words(line), environment));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage) << line;
    EXPECT_FALSE(e.problem().fix.empty()) << line;
    return e.problem().what;
  }
}

TEST(Call, GivesTheNumberOfRanksOrIsRefused) {
  const std::string no_ranks = "the number of ranks cannot be used",
                    no_host = "a name of a host cannot be used";
  struct Row {
    std::string line, used;
  };
  for (const Row& row : std::vector<Row>{
           {"", "1"},
           {"sh c.yaml", "1"},
           {"-np 3 sh -np 0", "3"},
           {"-n 2 sh : -np 4 sh", "4"},
           {"--np=5 --host=a:2,b sh", "5"},
           {"-c 2 -x NAME --mca a b sh", "2"},
           {"-ppn 2 sh", "1"},
           {"-np", no_ranks},
           {"-np 0 sh", no_ranks},
           {"-np 1 sh : -np 0 sh", no_ranks},
           {"-npernode x sh", no_ranks},
           {"--np= sh", no_ranks},
           {"-np 99999999 sh", no_ranks},
           {"--host a,-b sh", no_host},
           {"--host=-b sh", no_host},
           {"-H", "no host is named"},
           {"--hostfile /none/hosts sh", "the hostfile cannot be read"},
           {"--machinefile=/none/hosts sh", "the hostfile cannot be read"},
       })
    EXPECT_EQ(used(row.line), row.used) << row.line;
  EXPECT_EQ(used("sh", {{"OMPI_MCA_orte_default_hostfile", "/none"}}), "the hostfile cannot be read");
  EXPECT_EQ(used("sh", {{"OMPI_MCA_orte_default_hostfile", "none"}}), "1");
  EXPECT_EQ(used("sh", {{"SLURM_JOB_NODELIST", "a,-b"}}), no_host);
}

TEST(Call, KnowsWhetherHostsAreNamed) {
  EXPECT_FALSE(has_hosts(words("-np 2 sh"), {{"SLURM_NNODES", "1"}}));
  EXPECT_TRUE(has_hosts(words("-np 2 sh"), {{"SLURM_NNODES", "2"}}));
  EXPECT_TRUE(has_hosts(words("-np 2 sh"), {{"OMPI_MCA_orte_default_hostfile", "f"}}));
  for (const char* line : {"-H a sh", "--hostfile f sh", "-machinefile f sh"})
    EXPECT_TRUE(has_hosts(words(line), {})) << line;
}

TEST(Call, KnowsTheTrainer) {
  EXPECT_TRUE(runs_trainer(words("-np 2 build/bin/trainer c.yaml")));
  EXPECT_TRUE(runs_trainer(words("trainer")));
  EXPECT_FALSE(runs_trainer(words("trainer verify")));
  EXPECT_FALSE(runs_trainer(words("-np 2 sh")));
}

TEST(Call, ShowsControlCharactersInOneLine) {
  EXPECT_EQ(line_of({"a\nb", "\x1b[1m"}), "a\\x0Ab \\x1B[1m");
}

}  // namespace
}  // namespace octet::launch::call_test
