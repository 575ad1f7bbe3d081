// Where the time of a step goes, on average over several.
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
  double seconds = 0;  ///< of a step, mean
  double calls = 0;
};

/// Sums what a stream does step by step.
class StepProfile {
 public:
  /// `kind_of`: what a name of the profile counts to; none: itself.
  explicit StepProfile(Stream& stream, std::function<std::string(const std::string&)> kind_of = {});
  /// A step of `seconds` has ended, and the stream was synchronised. What does not count is forgotten.
  void step(bool counts, double seconds);
  /// Longest first; what no section covers is "waiting and gaps". After a step that counts.
  std::vector<StepProfileRow> rows() const;

 private:
  Profile profile_;
  std::function<std::string(const std::string&)> kind_of_;
  std::map<std::string, StepProfileRow> sums_;
  double steps_ = 0;
};

}  // namespace octet
