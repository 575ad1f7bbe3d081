// Connections between hosts, with shells of this machine as hosts.
#include "check/connections.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/signals.h"
#include "support/temporary_folder.h"

namespace octet::launch::connections_test {
namespace {

namespace fs = std::filesystem;

/// Each host has its own folder of commands, which comes first in PATH.
class HostConnections : public testing::Test {
 protected:
  HostConnections() : folder_("connections") {
    for (const char* host : {"one", "two"}) command(host, "hostname", "echo 127.0.0.1");
    command(".", "agent", "PATH=" + (folder_ / "$1:$PATH") + "; shift; exec \"$@\"");
  }
  void command(const std::string& host, const std::string& name, const std::string& text) const {
    const std::string file = folder_ / (host + "/" + name);
    test::spill(file, "#!/bin/sh\n" + text + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  std::string findings() {
    const std::vector<HostSlots> hosts{{.name = "one"}, {.name = "two"}};
    const RemoteShell shell({folder_ / "agent"});
    const Connections connections(hosts, shell, ".token's", {"0-0", "1-1,0-0"}, "Open MPI");
    std::string text;
    for (const Finding& finding : connections.try_all(requests_)) text += lines_of(finding);
    return text;
  }

  test::TemporaryFolder folder_;
  test::SignalsAsBefore signals_;
  Requests requests_;
};

TEST_F(HostConnections, AreMadeToThePortsOfEachHost) {
  EXPECT_TRUE(findings().starts_with("  ok     tcp        each host reaches the others")) << findings();
  // Another program answers: the word is wrong.
  command("one", "timeout", "echo .token-1");
  const std::string one = findings();
  EXPECT_NE(one.find(" of two, for mpirun's daemons, cannot be reached from one\n"), std::string::npos)
      << one;
  EXPECT_NE(one.find(" of two, for ranks, cannot be reached from one\n"), std::string::npos) << one;
  EXPECT_EQ(one.find("from two"), std::string::npos) << one;
  command("two", "perl", "exit 1");
  const std::string none = findings();
  EXPECT_TRUE(none.starts_with("  doubt  tcp        not tested to two: it has no perl")) << none;
  EXPECT_EQ(none.find("WRONG"), std::string::npos) << none;
}

}  // namespace
}  // namespace octet::launch::connections_test
