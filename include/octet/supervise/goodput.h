// Goodput: the share of time that trained steps which were not lost.
#pragma once

#include <cstdint>
#include <vector>

namespace octet::supervise {

/// Counts each step of several starts of a run once: steps after the checkpoint from which a later start
/// resumed were lost. The steps of a start count as equally long.
class Goodput {
 public:
  /// A start resumes after `step`: later steps of earlier starts are lost.
  void begin(std::int64_t step);
  /// The current start has done its steps up to `step` in `seconds`.
  void reach(std::int64_t step, double seconds);
  /// Returns the seconds of the steps that were not lost.
  double seconds() const;
  /// Returns seconds() / wall; 0 if `wall` is 0.
  double share(double wall) const { return wall > 0 ? seconds() / wall : 0; }

 private:
  struct Part {
    std::int64_t first = 0;  ///< the step before its first step
    std::int64_t last = 0;   ///< its last step that was not lost
    double seconds = 0;      ///< of the steps that were not lost
  };
  std::vector<Part> parts_;
};

}  // namespace octet::supervise
