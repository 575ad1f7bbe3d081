#include "octet/device/step_profile.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace octet {

StepProfile::StepProfile(Stream& stream, std::function<std::string(const std::string&)> kind_of)
    : profile_(stream), kind_of_(std::move(kind_of)) {}

void StepProfile::step(bool counts, double seconds) {
  const auto rows = profile_.collect();
  if (!counts) return;
  ++steps_;
  double known = 0;
  for (const auto& [name, row] : rows) {
    StepProfileRow& sum = sums_[kind_of_ ? kind_of_(name) : name];
    sum.seconds += row.seconds;
    sum.calls += static_cast<double>(row.calls);
    known += row.seconds;
  }
  sums_["waiting and gaps"].seconds += seconds - known;
}

std::vector<StepProfileRow> StepProfile::rows() const {
  std::vector<StepProfileRow> all;
  for (const auto& [name, sum] : sums_) {
    all.push_back({.name = name, .seconds = sum.seconds / steps_, .calls = sum.calls / steps_});
  }
  std::ranges::sort(all, std::greater<>(), &StepProfileRow::seconds);
  return all;
}

}  // namespace octet
