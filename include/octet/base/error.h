// The one error type. A message says what was expected, what was found, where, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace octet {

/// Exit codes of the program. 64 is never worth retrying; 75 to 77 are for supervisors.
enum class ExitCode : int {
  ok = 0,
  failure = 1,
  usage = 64,
  hang = 75,
  preempted = 76,
  no_valid_checkpoint = 77
};

/// The parts of a message; empty ones are left out when it is rendered.
struct Problem {
  std::string what;      ///< one sentence, no full stop: "unknown key 'lerning_rate'"
  std::string expected;  ///< "a positive number"
  std::string found;     ///< "-3"
  std::string where;     ///< file and line, key path, tensor, rank and host
  std::string fix;       ///< what the user can do
  ExitCode code = ExitCode::failure;
  bool agreed = false;  ///< every rank throws because of this problem, and exactly one of them with its text
};

/// Thrown for everything that a user can cause or mend. what() is the rendered message of several lines.
class Error : public std::runtime_error {
 public:
  explicit Error(Problem problem);
  explicit Error(const std::string& what) : Error(Problem{.what = what}) {}
  const Problem& problem() const { return problem_; }
  ExitCode code() const { return problem_.code; }

 private:
  Problem problem_;
};

/// Throws a std::logic_error when a condition that the code itself guarantees does not hold.
void check(bool condition, const char* what);

}  // namespace octet
