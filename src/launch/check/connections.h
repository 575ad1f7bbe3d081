// Connects every host to ports of each other host, for launch/check-hosts.
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
#include "check/questions.h"
#include "octet/launch/hosts.h"
#include "requests.h"

namespace octet::launch {

// The TCP ports that MPI uses between hosts, and which of them hosts reach.

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

/// A command that runs a shell on a host: the words of an agent like ssh come before the host.
class RemoteShell {
 public:
  explicit RemoteShell(Words agent) : agent_(std::move(agent)) {}
  /// Returns the command that runs a script from its standard input on the host.
  Words on(const HostSlots& host) const;
  const Words& agent() const { return agent_; }

 private:
  Words agent_;
};

class Connections {
 public:
  /// `token`: a word that other runs do not use. `mpi`: the version of MPI.
  Connections(const std::vector<HostSlots>& hosts, const RemoteShell& shell, std::string token,
              PortRanges ranges, std::string mpi);

  /// Returns the findings. They have no meaning after a request to stop.
  std::vector<Finding> try_all(Requests& requests) const;

 private:
  std::string word_of(std::size_t host) const;
  std::vector<Target> targets_of(std::size_t from, const PortMatrix& matrix) const;

  const std::vector<HostSlots>& hosts_;
  const RemoteShell& shell_;
  std::string token_;
  PortRanges ranges_;
  std::string mpi_;
};

}  // namespace octet::launch
