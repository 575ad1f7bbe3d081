// What a job said before it ended: which error, and whose.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::supervise {

/// Who is at fault, and with what, in the words of the job.
struct Fault {
  std::string what;                     ///< the first line of its first error; empty: it said none
  std::string who;                      ///< a rank, ranks, a host, mpirun; empty: nobody was named
  std::vector<std::string> lost_hosts;  ///< hosts that mpirun says it lost
};

/// Ranks of a job that ended while the others went on.
struct Lost {
  std::string who;  ///< "rank 3", "ranks 1, 3"
  int left = 0;     ///< ranks that go on
};
/// What those that go on say, to people and to the supervisor.
std::string text_of(const Lost& lost);

/// Listens to the lines of a job. A line is bytes of a program: what does not print is left out.
class Messages {
 public:
  /// Bytes as they come, lines cut anywhere.
  void hear(std::string_view bytes);
  /// What they amount to.
  const Fault& fault() const { return fault_; }
  /// The latest ranks that others went on without, since the last call.
  std::optional<Lost> take_lost() { return std::exchange(lost_, std::nullopt); }

 private:
  void hear_line(std::string line);

  std::string line_;  ///< what is not complete
  bool in_error_ = false;
  Fault fault_;
  std::optional<Lost> lost_;
};

}  // namespace octet::supervise
