// Where the ranks of a job are, and how it goes on with fewer of them.
#pragma once

#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/supervise/command.h"
#include "octet/supervise/messages.h"

namespace octet::supervise {

/// The configuration that a command names. Throws Error (usage) for one that cannot be used, and where its
/// output folder is another one to the ranks, which have a working folder of their own, than to this process.
config::Config config_of(const Command& command);

/// Changes a command so that it goes on without places that are gone. A step keeps its samples: its size is
/// taken from the first start where the configuration leaves it to the ranks.
class Places {
 public:
  /// Throws Error (usage) when `min_ranks` (0: fewer ranks are not wanted) does not fit the command.
  Places(Command command, const config::Config& config, int min_ranks);

  const Command& command() const { return command_; }
  /// Of the command; 0 where it leaves that to the hosts.
  int ranks() const { return ranks_of(command_).value_or(0); }
  /// Overrides that keep the size of a step.
  const Strings& overrides() const { return overrides_; }

  /// Takes in how a start ended: its exit code, whether it finished a step, and what it said. Returns in
  /// words what changed; empty where the next start is like this one.
  std::string after(int code, bool stepped, const Fault& fault);

 private:
  /// The most ranks, at most `most`, among which a step divides; 0 where that are too few.
  int fitting(int most) const;

  Command command_;
  config::Config config_;
  int min_ranks_;
  int wanted_ = 0;  ///< ranks of the first start
  int hangs_ = 0;   ///< starts in a row, of so many ranks, that did not answer before their first step
  Strings overrides_;
};

}  // namespace octet::supervise
