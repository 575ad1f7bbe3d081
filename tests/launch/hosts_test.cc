// Hostfiles and lists of hosts.
#include "octet/launch/hosts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/error.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace octet::launch::hosts_test {
namespace {

std::string named(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts) text += host.name + ":" + std::to_string(host.slots) + " ";
  return text;
}

// The hosts, or the message.
template <typename Read>
std::string outcome_of(const Read& read) {
  try {
    return named(read());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_FALSE(e.problem().fix.empty());
    EXPECT_FALSE(e.problem().where.empty());
    return e.problem().what;
  }
}

TEST(Hosts, OfAFile) {
  const test::TemporaryFolder folder("hosts");
  struct Row {
    std::string text, read;
  };
  for (const Row& row : std::vector<Row>{
           {"a slots=2\nb:3\nc\n", "a:2 b:3 c:1 "},
           {"localhost slots = 2 # first\n\n# none\nroot@b slots=2 max_slots=4 \t\n",
            "localhost:2 root@b:2 "},
           {"a slots =2\tmax_slots= 3\n", "a:2 "},
           {"[::1]:2\nlast:3", "[::1]:2:1 last:3 "},
           {"a cpu=4\nb count=5\nc cpus=6", "a:4 b:5 c:6 "},
           {"a:2 binding=rr ifname=ib0\nb user=me", "a:2 b:1 "},
           {"a,b:2,c\nd,e slots=3\n", "a:1 b:2 c:1 d:3 e:3 "},
           {"a\na\nb\n", "a:1 a:1 b:1 "},
           {"node[01-03,07] slots=8\n", "node01:8 node02:8 node03:8 node07:8 "},
           {"node[9-11]:4,gpu[1,3]-ib\n", "node9:4 node10:4 node11:4 gpu1-ib:1 gpu3-ib:1 "},
           {"rack[1-2]node[08-09]\n", "rack1node08:1 rack1node09:1 rack2node08:1 rack2node09:1 "},
           {"a slots=2\nnode[01-\n", "a range of host names is not valid"},
           {"node[3-1]\n", "a range of host names is not valid"},
           {"node[]\n", "a range of host names is not valid"},
           {"node[1-]\n", "a range of host names is not valid"},
           {"node[a-c]\n", "a range of host names is not valid"},
           {"node[1-99999999]\n", "a range of host names is not valid"},
           {"n[1-999]o[1-999]\n", "a range of host names is not valid"},
           {"a,,b\n", "a host name is not valid"},
           {"a slots=2 slot=3\n", "a word after a host name has no meaning"},
           {"a 4\n", "a word after a host name has no meaning"},
           {"a slots=2\r\n", "the hostfile has line ends of Windows (CR LF), which mpirun cannot read"},
           {"a slots=2 # the first",
            "the last line of the hostfile is a comment without a line end, which mpirun cannot read"},
           {"", "the hostfile names no host"},
           {"# none\n\n", "the hostfile names no host"},
           {"a slots=many\n", "a host has no number of ranks"},
           {"a slots=0\n", "a host has no number of ranks"},
           {"a slots=\n", "a host has no number of ranks"},
           {"a slots=99999999\n", "a host has no number of ranks"},
           {"a max_slots=x\n", "a host has no number of ranks"},
           {"a:x\n", "a host has no number of ranks"},
           {"a\n-oProxyCommand=x slots=2\n", "a host name is not valid"},
           {"me@-x\n", "a host name is not valid"},
           {"me@\n", "a host name is not valid"},
           {"\xef\xbb\xbflocalhost\n", "a host name has an invalid character"},
           {"a;b\n", "a host name has an invalid character"},
       }) {
    test::spill(folder / "file", row.text);
    EXPECT_EQ(outcome_of([&] { return read_hostfile(folder / "file"); }), row.read) << row.text;
  }
  EXPECT_EQ(outcome_of([&] { return read_hostfile(folder.path()); }), "the hostfile cannot be read");
  EXPECT_EQ(outcome_of([&] { return read_hostfile(folder / "none"); }), "the hostfile cannot be read");
}

TEST(Hosts, AWrongLineIsNamed) {
  const test::TemporaryFolder folder("hosts");
  test::spill(folder / "file", "# nodes\na slots=2\n\nnode[1-2 slots=2\n");
  try {
    read_hostfile(folder / "file");
    FAIL() << "the bracket is open";
  } catch (const Error& e) {
    EXPECT_EQ(e.problem().where, (folder / "file") + ":4");
    EXPECT_EQ(e.problem().found, "node[1-2");
  }
}

TEST(Hosts, AreTranslatedOnlyIfMpirunCannotReadThem) {
  const test::TemporaryFolder folder("hosts");
  struct Row {
    std::string text, open_mpi, mpich;
  };
  const std::string as_it_is = "as it is";
  for (const Row& row : std::vector<Row>{
           {"a\nb # second\n", as_it_is, as_it_is},
           {"a slots=2 max_slots=4\nb\n", as_it_is, "a:2\nb\n"},
           {"a:2\nb:3 binding=rr\n", "a slots=2\nb slots=3 binding=rr\n", as_it_is},
           {"a,b\n", "a\nb\n", "a\nb\n"},
           {"n[1-2] slots=2 max_slots=4\n", "n1 slots=2 max_slots=4\nn2 slots=2 max_slots=4\n",
            "n1:2\nn2:2\n"},
           {"n[1-2]:2\n[::1]\n", "n1 slots=2\nn2 slots=2\n[::1]\n", "n1:2\nn2:2\n[::1]\n"},
       }) {
    test::spill(folder / "file", row.text);
    const auto text = [&](HostfileReader reader) {
      return translated_hostfile(folder / "file", reader).value_or(as_it_is);
    };
    EXPECT_EQ(text(HostfileReader::open_mpi), row.open_mpi);
    EXPECT_EQ(text(HostfileReader::mpich), row.mpich);
  }
}

TEST(Hosts, OfAList) {
  struct Row {
    std::string list, read;
  };
  for (const Row& row : std::vector<Row>{
           {"a", "a:1 "},
           {"a:2,b:*,c", "a:2 b:1 c:1 "},
           {"fe80::1,b:2", "fe80::1:1 b:2 "},
           {"", "no host is named"},
           {"a,", "a host name is not valid"},
           {"a,-b", "a host name is not valid"},
           {"a:0", "a host has no number of ranks"},
           {"a:many", "a host has no number of ranks"},
           {"a b", "a host name has an invalid character"},
       }) {
    EXPECT_EQ(outcome_of([&] { return parse_host_list(row.list, "--host"); }), row.read) << row.list;
  }
}

}  // namespace
}  // namespace octet::launch::hosts_test
