// How much of the time that went by trained steps which are still there.
#pragma once

#include <cstdint>
#include <vector>

namespace octet::supervise {

/// The steps of several starts of a run, each counted once: those behind the checkpoint that a later start
/// went back to were trained in vain. The steps of a start count as equally long.
class Goodput {
 public:
  /// A start goes on behind `step`: what earlier ones did behind it is lost.
  void begin(std::int64_t step);
  /// The start under way has done the steps behind the one it began with up to `step`, in `seconds`.
  void reach(std::int64_t step, double seconds);
  /// Seconds of the steps that count.
  double seconds() const;
  /// The same over `wall` seconds; 0 where none have gone by.
  double share(double wall) const { return wall > 0 ? seconds() / wall : 0; }

 private:
  struct Part {
    std::int64_t first = 0;  ///< the step before its first
    std::int64_t last = 0;   ///< its last step that counts
    double seconds = 0;      ///< of those that count
  };
  std::vector<Part> parts_;
};

}  // namespace octet::supervise
