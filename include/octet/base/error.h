// The error type of Octet. A message has four parts: expected, found, where, and fix.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace octet {

/// Exit codes of the program (docs/checkpoints.md lists the reaction of a supervisor to each code).
enum class ExitCode : int {
  ok = 0,
  failure = 1,               ///< anything else
  usage = 64,                ///< configuration, command line, model or data: the same start fails again
  busy = 73,                 ///< the output folder belongs to another run, which is alive
  storage = 74,              ///< a disk is full, over its quota, read-only or fails
  hang = 75,                 ///< a rank did not come to a collective in time
  preempted = 76,            ///< stopped as asked, after a checkpoint
  no_valid_checkpoint = 77,  ///< a checkpoint that was asked for is not there, or its data are damaged
  unsaved = 78               ///< training since the newest checkpoint could not be saved
};

/// The parts of a message; empty ones are left out when it is rendered.
struct Problem {
  std::string what;      ///< one sentence, no full stop: "unknown key 'lerning_rate'"
  std::string expected;  ///< "a positive number"
  std::string found;     ///< "-3"
  std::string where;     ///< file and line, key path, tensor, rank and host
  std::string fix;       ///< the action for the user
  ExitCode code = ExitCode::failure;
  bool agreed = false;  ///< every rank throws because of this problem, and exactly one of them with its text
};

/// Thrown for everything that a user can cause or correct. what() is the rendered message of several lines.
class Error : public std::runtime_error {
 public:
  explicit Error(Problem problem);
  explicit Error(const std::string& what) : Error(Problem{.what = what}) {}
  const Problem& problem() const { return problem_; }
  ExitCode code() const { return problem_.code; }

 private:
  Problem problem_;
};

/// The problem to show for an exception: the problem of an Error, or advice if the system refused memory or
/// threads. Nothing for other exceptions, which are mistakes of the program.
std::optional<Problem> problem_of(const std::exception& exception);

/// Throws a std::logic_error when a condition that the code itself guarantees does not hold.
void check(bool condition, const char* what);

// Memory that a library is about to take.

/// Throws Error where this process may not take so many bytes more (ulimit -v, a host without any): for
/// libraries that do not look whether they got any, and are ended by a signal then. `what`: "the code of a
/// GEMM".
void require_memory_for(const char* what, std::size_t bytes);

/// The limit that the system sets for the memory of a process, such as "262144 KiB (ulimit -v)"; "" if there
/// is none.
std::string memory_limit();

/// Returns the error of a lack of memory: the limit of memory_limit() as `found`, if there is one, what to
/// do, and code_without_memory(). `what`: "cannot map a file"; `expected` and `where` may be empty.
Problem without_memory(std::string what, std::string expected = "", std::string where = "");

/// Returns the exit code of a lack of memory: usage under a memory_limit(), since the same start fails again;
/// else failure.
ExitCode code_without_memory();

}  // namespace octet
