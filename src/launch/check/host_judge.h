// Judges the answers of hosts for launch/check-hosts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "check/finding.h"
#include "check/questions.h"
#include "octet/launch/hosts.h"

namespace octet::launch {

class HostJudge {
 public:
  /// `here`: the answer of this host to the same question. `agent`: the command that reaches hosts, for
  /// messages.
  HostJudge(Question question, HostAnswer here, std::string agent);

  /// Returns the findings about a host. Adds a fault if a host that was judged earlier has the same name.
  std::vector<Finding> judge(const HostSlots& host, const HostReply& reply);

 private:
  Finding judge_silence(const HostSlots& host, const HostReply& reply) const;
  void judge_sameness(const HostAnswer& host, std::vector<Finding>& findings) const;
  void judge_paths(const HostAnswer& host, std::vector<Finding>& findings) const;

  Question question_;
  HostAnswer here_;
  std::string agent_;
  std::map<std::string, std::string> hosts_by_name_;
};

/// Judges the clock of a host. The host read its clock at an unknown time between `began` and `ended`.
Finding judge_clock(const HostReply& reply);

/// Returns findings about memory for messages, temporary files, limits and processors of a host that will run
/// `ranks` ranks.
std::vector<Finding> judge_limits(const HostAnswer& host, int ranks);

}  // namespace octet::launch
