#pragma once

#include <cstdint>
#include <iterator>

#include "octet/comm/collectives.h"
#include "segments.h"

namespace octet::store {

/// The collectives of the ranks that share segments: all ranks, or the ranks with the same experts.
struct Axes {
  comm::Collectives& all;
  comm::Collectives& same_experts;  ///< `all` if every rank has all experts

  comm::Collectives& of(const Segment& s) const { return s.spec->split_experts ? same_experts : all; }
  Places places() const { return {.all = all.place(), .same_experts = same_experts.place()}; }
  bool split() const { return &all != &same_experts; }
  template <typename Do>
  void each(Do&& act) const {
    act(all);
    if (split()) act(same_experts);
  }
};

/// Calls act(first, count) for the runs of FP8 scales that the ranks of `collectives` share, of trained or of
/// fixed weights.
template <typename Do>
void each_run_of_scales(const Segments& segments, const Axes& axes, const comm::Collectives& collectives,
                        bool trained, Do&& act) {
  std::int64_t first = 0, count = 0;
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (s.row.trained() != trained || &axes.of(s) != &collectives) continue;
      for (const auto& runs : s.scaled) {
        if (runs.empty()) continue;
        if (runs.front().scale != first + count) {
          if (count > 0) act(first, count);
          first = runs.front().scale, count = 0;
        }
        count += std::ssize(runs);
      }
    }
  }
  if (count > 0) act(first, count);
}

}  // namespace octet::store
