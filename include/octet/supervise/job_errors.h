// Reads the error of a job, and the rank or host that reported it, from its output.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::supervise {

/// The fault of a job, quoted from its output.
struct Fault {
  std::string what;  ///< first line of its first error; empty: no error
  std::string who;   ///< the rank, ranks, host or mpirun that reported it; empty: not named
  std::vector<std::string> lost_hosts;  ///< hosts that mpirun reports as lost
};

/// Ranks of a job that ended while the other ranks continued.
struct Lost {
  std::string who;  ///< "rank 3", "ranks 1, 3"
  int left = 0;     ///< ranks that continue
};
/// The message of the remaining ranks, for people and for the supervisor.
std::string text_of(const Lost& lost);

/// Parses the output of a job. Its lines are arbitrary bytes; unprintable bytes are dropped.
class Messages {
 public:
  /// Takes bytes of the output; lines may be split at any byte.
  void hear(std::string_view bytes);
  /// The fault that the output describes so far.
  const Fault& fault() const { return fault_; }
  /// The latest lost ranks since the last call, if the other ranks continued.
  std::optional<Lost> take_lost() { return std::exchange(lost_, std::nullopt); }

 private:
  void hear_line(std::string line);

  std::string line_;  ///< an incomplete line
  bool in_error_ = false;
  Fault fault_;
  std::optional<Lost> lost_;
};

}  // namespace octet::supervise
