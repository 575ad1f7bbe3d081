// The TCP ports that MPI uses between hosts, and which of them hosts reach.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "check/finding.h"
#include "octet/launch/hosts.h"

namespace octet::launch {

/// Ports for mpirun's daemons and for ranks.
inline constexpr std::size_t kPortKinds = 2;

/// Ranges of ports: FIRST-LAST, or several with commas. 0-0 means any port that the kernel gives.
using PortRanges = std::array<std::string, kPortKinds>;

/// Returns the ranges of the daemons and of the ranks. `mpi`: the version of MPI. `options`: mpirun's, which
/// come before variables of the environment.
PortRanges port_ranges(const std::string& mpi, const Words& options, const Environment& environment);

/// Returns which ports a firewall between the hosts must let through, and how to need only a few ports.
std::string advice_on_ports(const std::string& mpi);

/// What a host printed while it listened (listen_script).
class HostPorts {
 public:
  HostPorts() = default;
  explicit HostPorts(std::string_view text);
  /// Whether it listens and has an IPv4 address.
  bool is_reachable() const;
  /// Whether all ports are open.
  bool listens() const { return listens_; }
  const std::vector<std::string>& addresses() const { return addresses_; }  ///< IPv4 only
  /// Returns the port; nothing if no port of the range was free.
  const std::optional<int>& port(std::size_t kind) const { return ports_[kind]; }

 private:
  std::vector<std::string> addresses_;
  std::array<std::optional<int>, kPortKinds> ports_{};
  bool listens_ = false;
};

/// Which host reached which other host. A host connects to all addresses of the other; one is enough.
class PortMatrix {
 public:
  explicit PortMatrix(std::vector<HostPorts> ports) : ports_(std::move(ports)) {}

  const HostPorts& ports(std::size_t host) const { return ports_[host]; }
  /// Returns the line that reports a connection to a host.
  static std::string line_of(std::size_t to, std::size_t kind);
  /// Reads such lines, which `from` has printed.
  void add_lines_of(std::size_t from, std::string_view text);

  /// Returns a finding for each unreachable port and for each untested host. Otherwise returns one finding
  /// that is ok.
  std::vector<Finding> judge(const std::vector<HostSlots>& hosts, const PortRanges& ranges,
                             const std::string& mpi) const;

 private:
  std::optional<Finding> judge_port(std::size_t to, std::size_t kind, const std::vector<HostSlots>& hosts,
                                    const std::string& range, const std::string& mpi) const;

  std::vector<HostPorts> ports_;
  std::set<std::pair<std::size_t, std::string>> reached_;  ///< a host, and a line that it printed
};

}  // namespace octet::launch
