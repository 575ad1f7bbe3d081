// What launch/check-hosts prints about a host.
#pragma once

#include <string>
#include <vector>

namespace octet::launch {

/// The result of one check. Doubts do not fail the check of the hosts.
struct Finding {
  enum class Verdict { ok, doubt, wrong };
  Verdict verdict = Verdict::ok;
  std::string subject;   ///< a word, like "clock"
  std::string text;      ///< what was found
  std::string fix = {};  ///< what to do; empty if the verdict is ok
};

Finding ok(std::string subject, std::string text);
Finding doubt(std::string subject, std::string text, std::string fix);
Finding fault(std::string subject, std::string text, std::string fix);

/// Whether a finding is wrong.
bool has_fault(const std::vector<Finding>& findings);

/// Returns the finding as one line, or as two lines with what to do. Control characters are printed as
/// escapes.
std::string lines_of(const Finding& finding);

}  // namespace octet::launch
