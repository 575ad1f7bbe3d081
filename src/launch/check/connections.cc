#include "check/connections.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <utility>

#include "check/questions.h"
#include "child.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"

namespace octet::launch {
namespace {

constexpr int kFirstPort = 1024, kPorts = 65536;
constexpr std::array<const char*, kPortKinds> kUsers{"mpirun's daemons", "ranks"};

bool is_open_mpi(const std::string& mpi) {
  return mpi.find("Open MPI") != std::string::npos;
}

// Returns the value of a setting of Open MPI; "" if it is not set.
std::string setting(const std::string& name, const Words& options, const Environment& environment) {
  std::string value = value_in(environment, "OMPI_MCA_" + name);
  if (value.empty()) value = value_in(environment, "PRTE_MCA_" + name);
  for (std::size_t i = 0; i + 2 < options.size(); ++i) {
    const std::string& option = options[i];
    const bool sets = option == "--mca" || option == "-mca" || option == "--prtemca" || option == "--pmixmca";
    if (sets && options[i + 1] == name) value = options[i + 2];
  }
  return value;
}

int number_or(const std::string& text, int other) {
  return count_of(text).value_or(other);
}

std::string with_hyphens(std::string range) {
  std::ranges::replace(range, ':', '-');
  return range.empty() ? "0-0" : range;
}

// Whether the user has left the range as it is.
bool is_any_port(const std::string& range) {
  return range == "0-0" || range == "1024-65535";
}

}  // namespace

PortRanges port_ranges(const std::string& mpi, const Words& options, const Environment& environment) {
  if (!is_open_mpi(mpi))
    return {with_hyphens(value_in(environment, "MPIEXEC_PORT_RANGE")),
            with_hyphens(value_in(environment, "MPIR_CVAR_CH3_PORT_RANGE"))};
  const auto value = [&](const char* name) { return setting(name, options, environment); };
  std::string daemons = value("oob_tcp_static_ipv4_ports");
  if (daemons.empty()) daemons = value("oob_tcp_dynamic_ipv4_ports");
  const int first = number_or(value("btl_tcp_port_min_v4"), kFirstPort);
  const int count = number_or(value("btl_tcp_port_range_v4"), kPorts - first);
  return {with_hyphens(daemons), std::to_string(first) + "-" + std::to_string(first + count - 1)};
}

std::string advice_on_ports(const std::string& mpi) {
  if (!is_open_mpi(mpi))
    return "let TCP through between the hosts: MPICH takes any port (MPIEXEC_PORT_RANGE=10000:10099 for its "
           "daemons, MPIR_CVAR_CH3_PORT_RANGE=10100:10299 for ranks); -t gives more seconds, if the network "
           "is "
           "only slow";
  const bool is_4 = mpi.find(" 4.") != std::string::npos || mpi.find(" v4.") != std::string::npos;
  return std::string("let TCP through between the hosts: ssh, mpirun's daemons take any port (") +
         (is_4 ? "--mca" : "--prtemca") +
         " oob_tcp_dynamic_ipv4_ports 10000-10099 names some), ranks any from 1024 up (--mca "
         "btl_tcp_port_min_v4 10100 --mca btl_tcp_port_range_v4 200); if hosts have several networks, --mca "
         "btl_tcp_if_include names one; -t gives more seconds";
}

HostPorts::HostPorts(std::string_view text) {
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> words = split(trim(line), ' ');
    if (words.front() == "addresses") {
      std::copy_if(words.begin() + 1, words.end(), std::back_inserter(addresses_),
                   [](const std::string& word) {
                     return word.find('.') != std::string::npos && word.find(':') == std::string::npos;
                   });
    } else if (words.front() == "port" && words.size() == 3) {
      const auto kind = static_cast<std::size_t>(std::atoi(words[1].c_str()));
      if (kind < kPortKinds) ports_[kind] = count_of(words[2]);
    } else if (words.front() == "listens") {
      listens_ = true;
    }
  }
}

bool HostPorts::is_reachable() const {
  return listens_ && !addresses_.empty();
}

std::string PortMatrix::line_of(std::size_t to, std::size_t kind) {
  return "reached " + std::to_string(to) + " " + std::to_string(kind);
}

void PortMatrix::add_lines_of(std::size_t from, std::string_view text) {
  for (const std::string& line : split(text, '\n')) reached_.emplace(from, line);
}

std::vector<Finding> PortMatrix::judge(const std::vector<HostSlots>& hosts, const PortRanges& ranges,
                                       const std::string& mpi) const {
  std::vector<Finding> findings;
  for (std::size_t to = 0; to < hosts.size(); ++to) {
    if (!ports_[to].is_reachable()) {
      findings.push_back(doubt("tcp",
                               "not tested to " + hosts[to].name + ": it has no perl, or reports no address",
                               "install perl there, or read the messages below"));
      continue;
    }
    for (std::size_t kind = 0; kind < kPortKinds; ++kind) {
      if (auto finding = judge_port(to, kind, hosts, ranges[kind], mpi)) findings.push_back(*finding);
    }
  }
  if (findings.empty())
    findings.push_back(
        ok("tcp", "each host reaches the others, at ports for mpirun's daemons and for ranks"));
  return findings;
}

std::optional<Finding> PortMatrix::judge_port(std::size_t to, std::size_t kind,
                                              const std::vector<HostSlots>& hosts, const std::string& range,
                                              const std::string& mpi) const {
  const std::optional<int>& port = ports_[to].port(kind);
  if (!port)
    return fault("tcp",
                 "none of the ports " + range + " is free on " + hosts[to].name + ", for " + kUsers[kind],
                 "name other ports, or end the programs that use them");
  std::string from;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (i == to || reached_.contains({i, line_of(to, kind)})) continue;
    from += (from.empty() ? "" : ", ") + hosts[i].name;
  }
  if (from.empty()) return std::nullopt;
  return fault("tcp",
               "port " + std::to_string(*port) + " of " + hosts[to].name + ", for " + kUsers[kind] +
                   ", cannot be reached from " + from,
               is_any_port(range)
                   ? advice_on_ports(mpi)
                   : "let TCP through to the ports " + range + " between the hosts, or name others");
}

namespace {

constexpr std::chrono::seconds kListening{60}, kConnecting{60}, kStart{15};

}  // namespace

Words RemoteShell::on(const HostSlots& host) const {
  Words words = agent_;
  words.insert(words.end(), {host.name, "sh", "-s"});
  return words;
}

Connections::Connections(const std::vector<HostSlots>& hosts, const RemoteShell& shell, std::string token,
                         PortRanges ranges, std::string mpi)
    : hosts_(hosts),
      shell_(shell),
      token_(std::move(token)),
      ranges_(std::move(ranges)),
      mpi_(std::move(mpi)) {}

std::string Connections::word_of(std::size_t host) const {
  return token_ + "-" + std::to_string(host);
}

std::vector<Target> Connections::targets_of(std::size_t from, const PortMatrix& matrix) const {
  std::vector<Target> targets;
  for (std::size_t to = 0; to < hosts_.size(); ++to) {
    if (to == from) continue;
    const HostPorts& ports = matrix.ports(to);
    for (std::size_t kind = 0; kind < kPortKinds; ++kind) {
      if (!ports.port(kind)) continue;
      for (const std::string& address : ports.addresses())
        targets.push_back({.address = address,
                           .port = *ports.port(kind),
                           .word = word_of(to),
                           .answer = PortMatrix::line_of(to, kind)});
    }
  }
  return targets;
}

std::vector<Finding> Connections::try_all(Requests& requests) const {
  const std::vector<std::string> ranges(ranges_.begin(), ranges_.end());
  std::deque<Child> listeners;
  for (std::size_t i = 0; i < hosts_.size(); ++i)
    listeners.emplace_back(Child::Start{.words = shell_.on(hosts_[i]),
                                        .input = listen_script(word_of(i), ranges),
                                        .holds_input = true,
                                        .limit = kListening});
  const auto end_of_start = Clock::now() + kStart;
  serve(listeners, requests, [&] {
    return Clock::now() > end_of_start || std::ranges::all_of(listeners, [](const Child& listener) {
             return listener.has_ended() || HostPorts(listener.output()).listens();
           });
  });
  std::vector<HostPorts> ports;
  for (const Child& listener : listeners) ports.emplace_back(listener.output());
  PortMatrix matrix(std::move(ports));
  if (requests.stop()) return {};

  std::deque<Child> callers;
  for (std::size_t i = 0; i < hosts_.size(); ++i)
    callers.emplace_back(Child::Start{
        .words = shell_.on(hosts_[i]), .input = connect_script(targets_of(i, matrix)), .limit = kConnecting});
  serve(callers, requests);
  for (std::size_t i = 0; i < hosts_.size(); ++i) matrix.add_lines_of(i, callers[i].output());
  for (Child& listener : listeners) listener.close_input();
  serve(listeners, requests);
  return matrix.judge(hosts_, ranges_, mpi_);
}

}  // namespace octet::launch
