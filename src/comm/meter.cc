#include "meter.h"

#include <utility>

namespace octet::comm {

void Meter::under_way(int change) {
  const std::scoped_lock lock(mutex_);
  const bool before = under_way_ > 0;
  under_way_ += change;
  if (before == (under_way_ > 0)) return;
  const auto now = Clock::now();
  if (before) seconds_busy_ += std::chrono::duration<double>(now - busy_since_).count();
  busy_since_ = now;
}

double Meter::seconds_busy() const {
  const std::scoped_lock lock(mutex_);
  if (under_way_ == 0) return seconds_busy_;
  return seconds_busy_ + seconds_since(busy_since_);
}

void Meter::count(Kind kind, const Traffic& traffic) {
  const std::scoped_lock lock(mutex_);
  Traffic& sum = traffic_[kind];
  sum.calls += traffic.calls;
  sum.bytes_sent += traffic.bytes_sent;
  sum.bytes_between_nodes += traffic.bytes_between_nodes;
  sum.seconds += traffic.seconds;
}

std::vector<Traffic> Meter::take() {
  const std::scoped_lock lock(mutex_);
  std::vector<Traffic> taken;
  for (auto& [kind, traffic] : std::exchange(traffic_, {})) {
    traffic.kind = name_of(kind);
    taken.push_back(traffic);
  }
  return taken;
}

}  // namespace octet::comm
