// Ports of MPI, and hosts that reach them.
#include "check/connections.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "octet/base/strings.h"

namespace octet::launch::ports_test {
namespace {

const std::string kOpen4 = "mpirun (Open MPI) 4.1.4", kOpen5 = "Open MPI v5.0.7",
                  kMpich = "HYDRA build details:";

TEST(Ports, OfMpiComeFromOptionsBeforeVariables) {
  struct Row {
    std::string mpi, options;
    Environment environment;
    std::string daemons, ranks;
  };
  const std::string any = "1024-65535";
  for (const Row& row : std::vector<Row>{
           {kOpen4, "", {}, "0-0", any},
           {kOpen5, "--mca btl_tcp_port_min_v4 10100", {}, "0-0", "10100-65535"},
           {kOpen4, "-mca btl_tcp_port_range_v4 200", {}, "0-0", "1024-1223"},
           {kOpen4,
            "-x A --mca btl_tcp_port_min_v4 10100 --mca btl_tcp_port_range_v4 200",
            {},
            "0-0",
            "10100-10299"},
           {kOpen4, "--mca oob_tcp_dynamic_ipv4_ports 1,3-4", {}, "1,3-4", any},
           {kOpen5, "--prtemca oob_tcp_dynamic_ipv4_ports 1-2", {}, "1-2", any},
           {kOpen5, "--pmixmca oob_tcp_static_ipv4_ports 3 --mca oob_tcp_dynamic_ipv4_ports 1", {}, "3", any},
           {kOpen4, "", {{"OMPI_MCA_oob_tcp_dynamic_ipv4_ports", "5-6"}}, "5-6", any},
           {kOpen5, "", {{"PRTE_MCA_oob_tcp_dynamic_ipv4_ports", "5-6"}}, "5-6", any},
           {kOpen4,
            "--mca oob_tcp_dynamic_ipv4_ports 1",
            {{"OMPI_MCA_oob_tcp_dynamic_ipv4_ports", "5"}},
            "1",
            any},
           {kOpen4, "--mca other 1 --mca oob_tcp_dynamic_ipv4_ports", {}, "0-0", any},
           {kOpen4, "-x oob_tcp_dynamic_ipv4_ports 1", {}, "0-0", any},
           {kOpen4, "--mca btl_tcp_port_min_v4 many", {}, "0-0", any},
           {kOpen4, "", {{"MPIEXEC_PORT_RANGE", "7:8"}}, "0-0", any},
           {kMpich, "", {{"MPIEXEC_PORT_RANGE", "7:8"}}, "7-8", "0-0"},
           {kMpich,
            "--mca oob_tcp_dynamic_ipv4_ports 1",
            {{"MPIR_CVAR_CH3_PORT_RANGE", "9:10"}},
            "0-0",
            "9-10"},
       }) {
    const PortRanges ranges = port_ranges(row.mpi, split(row.options, ' '), row.environment);
    EXPECT_EQ(ranges[0], row.daemons) << row.options;
    EXPECT_EQ(ranges[1], row.ranks) << row.options;
  }
}

TEST(Ports, ToLetThroughDependOnTheMpi) {
  for (const auto& [mpi, says] :
       {std::pair{kOpen4, "(--mca oob_tcp_dynamic_ipv4_ports 10000-10099 names some)"},
        {"Open MPI v4.1.6, package: x", "(--mca oob_tcp_dynamic_ipv4_ports"},
        {kOpen5, "(--prtemca oob_tcp_dynamic_ipv4_ports 10000-10099 names some)"},
        {kMpich, "MPIEXEC_PORT_RANGE=10000:10099 for its daemons"}})
    EXPECT_NE(advice_on_ports(mpi).find(says), std::string::npos) << advice_on_ports(mpi);
}

TEST(HostPorts, AreReadFromTheListenersLines) {
  struct Row {
    std::string text;
    bool is_reachable;
    std::size_t addresses;
    int daemons, ranks;  ///< 0: no port
  };
  for (const Row& row : std::vector<Row>{
           {"", false, 0, 0, 0},
           {"addresses 10.0.0.1 fe80::1 ::ffff:10.0.0.1 10.1.0.1 \nport 0 5\nport 1 6\nlistens\n", true, 2, 5,
            6},
           {"Welcome to port 7\naddresses 10.0.0.1\nport 1 6\nlistens\n", true, 1, 0, 6},
           {"addresses fe80::1\nport 0 5\nport 1 6\nlistens\n", false, 0, 5, 6},
           {"addresses 10.0.0.1\nport 0 5\n", false, 1, 5, 0},
           {"addresses 10.0.0.1\nport 2 5\nport 0\nport x\nlistens\n", true, 1, 0, 0},
       }) {
    const HostPorts ports(row.text);
    EXPECT_EQ(ports.is_reachable(), row.is_reachable) << row.text;
    EXPECT_EQ(ports.addresses().size(), row.addresses) << row.text;
    EXPECT_EQ(ports.port(0).value_or(0), row.daemons) << row.text;
    EXPECT_EQ(ports.port(1).value_or(0), row.ranks) << row.text;
  }
}

// Three hosts. Each has its own listener's text and the connections that it made, as host and kind.
TEST(PortMatrix, NamesWhoCannotReachAPort) {
  const std::string good = "addresses 10.0.0.1\nport 0 50\nport 1 60\nlistens\n";
  using Texts = std::vector<std::string>;
  struct Row {
    Texts listeners, reached;
    PortRanges ranges;
    std::string findings;
  };
  const PortRanges any{"0-0", "1024-65535"}, some{"50-59", "60-69"};
  const auto lines = [](const Finding& finding) { return lines_of(finding); };
  for (const Row& row : std::vector<Row>{
           {{good, good, good},
            {"10 11 20 21", "00 01 20 21", "00 01 10 11"},
            any,
            lines(ok("tcp", "each host reaches the others, at ports for mpirun's daemons and for ranks"))},
           {{good, good, good},
            {"10 20 21", "00 01 20 21", "00 01 10"},
            some,
            lines(fault("tcp", "port 60 of b, for ranks, cannot be reached from a, c",
                        "let TCP through to the ports 60-69 between the hosts, or name others"))},
           {{good, good, good},
            {"10 11 20 21", "00 01 20 21", "01 10 11"},
            any,
            lines(fault("tcp", "port 50 of a, for mpirun's daemons, cannot be reached from c",
                        advice_on_ports(kOpen4)))},
           {{good, good, good},
            {"10 11 20 21", "20 21", "00 01 10 11"},
            any,
            lines(fault("tcp", "port 50 of a, for mpirun's daemons, cannot be reached from b",
                        advice_on_ports(kOpen4))) +
                lines(fault("tcp", "port 60 of a, for ranks, cannot be reached from b",
                            advice_on_ports(kOpen4)))},
           {{good, "addresses 10.0.0.2\n", good},
            {"20 21", "00 01 20 21", "00 01"},
            any,
            lines(doubt("tcp", "not tested to b: it has no perl, or reports no address",
                        "install perl there, or read the messages below"))},
           {{good, good, "addresses 10.0.0.3\nport 1 60\nlistens\n"},
            {"10 11 21", "00 01 21", "00 01 10 11"},
            some,
            lines(fault("tcp", "none of the ports 50-59 is free on c, for mpirun's daemons",
                        "name other ports, or end the programs that use them"))},
       }) {
    std::vector<HostPorts> ports;
    for (const std::string& text : row.listeners) ports.emplace_back(text);
    PortMatrix matrix(std::move(ports));
    for (std::size_t from = 0; from < row.reached.size(); ++from) {
      std::string text = "Welcome\n";
      for (const std::string& pair : split(row.reached[from], ' '))
        text += PortMatrix::line_of(static_cast<std::size_t>(pair[0] - '0'),
                                    static_cast<std::size_t>(pair[1] - '0')) +
                "\n";
      matrix.add_lines_of(from, text);
    }
    std::string findings;
    for (const Finding& finding :
         matrix.judge({{.name = "a"}, {.name = "b"}, {.name = "c"}}, row.ranges, kOpen4))
      findings += lines_of(finding);
    EXPECT_EQ(findings, row.findings);
  }
}

}  // namespace
}  // namespace octet::launch::ports_test
