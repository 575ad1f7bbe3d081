#include "check/connections.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "check/questions.h"
#include "child.h"
#include "octet/base/timing.h"

namespace octet::launch {
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
