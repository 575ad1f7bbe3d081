// The hosts of a job, and how it continues with fewer ranks.
#pragma once

#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/supervise/job_command.h"
#include "octet/supervise/job_errors.h"

namespace octet::supervise {

/// Returns the configuration that a command names. Throws Error (usage) if it is invalid. Also throws if the
/// ranks have another working folder than this process and the output folder is relative to it.
config::Config config_of(const Command& command);

/// Changes a command so that it continues without lost hosts or ranks. The samples per step are kept: if the
/// number of ranks decides them, the first start's number is fixed.
class Places {
 public:
  /// Throws Error (usage) if `min_ranks` (0: never fewer ranks) does not fit the command.
  Places(Command command, const config::BatchKeys& config, int min_ranks);

  const Command& command() const { return command_; }
  /// Returns the ranks of the command; 0 if the hosts decide.
  int ranks() const { return ranks_of(command_).value_or(0); }
  /// Returns overrides that fix the samples per step.
  const Strings& overrides() const { return overrides_; }

  /// Handles the end of a start: its exit code, whether it finished a step, and its fault. Returns a
  /// description of the change; "" if the next start is unchanged.
  std::string after(int code, bool stepped, const Fault& fault);

 private:
  /// Returns the largest number of ranks, at most `most`, that divides a step; 0 if it is too small.
  int fitting(int most) const;

  Command command_;
  config::BatchKeys config_;
  int min_ranks_;
  int wanted_ = 0;  ///< ranks of the first start
  int hangs_ = 0;   ///< starts in a row with these ranks that hung before their first step
  Strings overrides_;
};

}  // namespace octet::supervise
