// The time of a step by kind of work, averaged over several steps.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "octet/device/profile.h"

namespace octet {

/// A kind of work of a profiled step.
struct StepProfileRow {
  std::string name;
  double seconds = 0;  ///< seconds per step, mean
  double calls = 0;
};

/// Sums the profile of a stream over steps.
class StepProfile {
 public:
  /// `kind_of`: maps a name of the profile to a row; empty: each name is a row.
  explicit StepProfile(Stream& stream, std::function<std::string(const std::string&)> kind_of = {});
  /// Records the end of a step of `seconds`. The stream must be synchronised. If not `counts`, the step is
  /// discarded.
  void step(bool counts, double seconds);
  /// Returns the rows, longest first. Time outside of all sections is "waiting and gaps". Requires a step
  /// that counts.
  std::vector<StepProfileRow> rows() const;

 private:
  Profile profile_;
  std::function<std::string(const std::string&)> kind_of_;
  std::map<std::string, StepProfileRow> sums_;
  double steps_ = 0;
};

}  // namespace octet
