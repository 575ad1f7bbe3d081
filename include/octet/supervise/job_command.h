#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/keys.h"
#include "octet/report/progress.h"

namespace octet::supervise {

// The command line of a job: the launcher's arguments, the program and its configuration. Also the hosts and
// ranks that the launcher's arguments name.

using Strings = std::vector<std::string>;

/// `launch/mpirun's arguments` `trainer` `config.yaml key=value ...`.
struct Command {
  Strings launcher;   ///< the launcher and its arguments
  Strings program;    ///< its name, and `train` if given
  Strings arguments;  ///< of the program: a configuration and overrides

  /// Returns all words, followed by more overrides.
  Strings words(const Strings& overrides = {}) const;
};

/// Whether a word names an executable file. A word without a slash is searched on PATH.
bool is_program(const std::string& word);

/// Finds the program among `words`, which follow the launcher: the first executable that a configuration (or
/// `train`) follows, else the first that key=value follows. Throws Error (usage) if there is none, for a
/// command other than training, and for several programs in one job (mpirun's colon).
Command parse_command(const std::string& launcher, const Strings& words,
                      const std::function<bool(const std::string&)>& executable = is_program);

/// Returns the number of ranks in the launcher's arguments (-np, -n, --np, -c); nullopt if the hosts decide.
std::optional<int> ranks_of(const Command& command);
/// Changes the number of ranks. Requires that ranks_of() has a value.
void set_ranks(Command& command, int ranks);

struct Host {
  std::string name;
  int slots = 1;  ///< number of ranks that the host may run
};

/// Returns the hosts in the launcher's arguments (--host or a hostfile), in their order; empty if they name
/// none. Throws Error (usage) if a hostfile cannot be read.
std::vector<Host> hosts_of(const Command& command);
/// Throws Error (usage) for a hostfile among the launcher's arguments that cannot be read.
void require_hostfiles(const Command& command);
/// Removes a host; one --host replaces the options that named hosts. Returns the number of slots left.
/// Returns nothing and changes nothing if the command does not name the host, or if it is the last host.
std::optional<int> leave_out(Command& command, const std::string& host);

// The state that the next start of a run, or the remaining ranks, take over from the previous start.

/// Returns overrides for a restart. A restarted run resumes from the newest checkpoint in its folder. If the
/// configuration names another start (a checkpoint, none, or an empty folder by overwrite_output_dir), it was
/// meant for the first start and is overridden. `saved` is the progress of this run; its checkpoint is named
/// if it is valid.
Strings resume_overrides(const config::SaveKeys& config, const report::Progress& saved);

/// Whether `ranks` ranks can divide the samples of a step.
bool runs_on(const config::BatchKeys& config, int ranks);

}  // namespace octet::supervise
