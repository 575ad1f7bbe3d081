// Connects every host to ports of each other host, for launch/check-hosts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "check/finding.h"
#include "check/ports.h"
#include "check/questions.h"
#include "octet/launch/hosts.h"
#include "requests.h"

namespace octet::launch {

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
