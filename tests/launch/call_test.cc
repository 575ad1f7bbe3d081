// The arguments of launch/mpirun.
#include "arguments.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::launch::call_test {
namespace {

Words words(const std::string& line) {
  return line.empty() ? Words{} : split(line, ' ');
}

// The number of ranks, or the message.
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
  const std::string no_ranks = "the number of ranks cannot be used", no_host = "a host name is not valid";
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
  EXPECT_TRUE(has_hosts(words("-np 2 sh"), {{"PRTE_MCA_prte_default_hostfile", "f"}}));
  for (const char* line : {"-H a sh", "--hostfile f sh", "-machinefile f sh", "-f f sh"})
    EXPECT_TRUE(has_hosts(words(line), {})) << line;
  EXPECT_FALSE(has_hosts(words("-np 2 sh -f f -H a"), {{"PATH", "/bin:/usr/bin"}})) << "words of the program";
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

// The fix of the message under a limit of this process, or "".
std::string refused_under(__rlimit_resource resource, rlim_t value, const std::string& line, int ranks) {
  rlimit before{};
  ::getrlimit(resource, &before);
  const rlimit limit{.rlim_cur = value, .rlim_max = before.rlim_max};
  ::setrlimit(resource, &limit);
  std::string fix;
  try {
    require_limits(ranks, words(line));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(e.problem().expected.find("at least "), std::string::npos);
    EXPECT_EQ(e.problem().found, std::to_string(value));
    fix = e.problem().fix;
  }
  ::setrlimit(resource, &before);
  return fix.substr(0, fix.find(" ("));
}

TEST(Call, LowLimitsAreRefusedOnceForAllRanks) {
  constexpr rlim_t kKiB = 1 << 10, kMiB = 1 << 20;
  const std::string trainer = "-np 2 build/bin/trainer c.yaml", other = "-np 2 seq 1";
  struct Row {
    __rlimit_resource resource;
    rlim_t least;
    std::string line, fix;
    int ranks = 2;
  };
  for (const Row& row : {Row{RLIMIT_FSIZE, 8 * kMiB, other, "ulimit -f 8192 or more"},
                         {RLIMIT_STACK, 256 * kKiB, other, "ulimit -s 8192"},
                         {RLIMIT_NOFILE, 40, other, "ulimit -n 4096"},
                         {RLIMIT_NOFILE, 8032, "-np 2000 seq 1", "ulimit -n 8032, or a smaller -np", 2000},
                         {RLIMIT_AS, 352 * kMiB, trainer, "ulimit -v unlimited"},
                         {RLIMIT_AS, 96 * kMiB, other, "ulimit -v unlimited"},
                         {RLIMIT_DATA, 240 * kMiB, trainer, "ulimit -d unlimited"},
                         {RLIMIT_DATA, 32 * kMiB, other, "ulimit -d unlimited"}}) {
    SCOPED_TRACE(row.fix + " " + row.line);
    EXPECT_EQ(refused_under(row.resource, row.least - 1, row.line, row.ranks), row.fix);
    EXPECT_EQ(refused_under(row.resource, row.least, row.line, row.ranks), "");
  }
}

}  // namespace
}  // namespace octet::launch::call_test
