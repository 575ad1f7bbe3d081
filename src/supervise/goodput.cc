#include "octet/supervise/goodput.h"

#include <algorithm>
#include <numeric>

namespace octet::supervise {

void Goodput::begin(std::int64_t step) {
  while (!parts_.empty() && parts_.back().first >= step) parts_.pop_back();
  if (!parts_.empty() && parts_.back().last > step) {
    Part& cut = parts_.back();
    cut.seconds *= static_cast<double>(step - cut.first) / static_cast<double>(cut.last - cut.first);
    cut.last = step;
  }
  parts_.push_back({.first = step, .last = step});
}

void Goodput::reach(std::int64_t step, double seconds) {
  if (parts_.empty()) begin(0);
  parts_.back().last = std::max(step, parts_.back().first);
  parts_.back().seconds = std::max(0.0, seconds);
}

double Goodput::seconds() const {
  return std::accumulate(parts_.begin(), parts_.end(), 0.0,
                         [](double sum, const Part& part) { return sum + part.seconds; });
}

}  // namespace octet::supervise
