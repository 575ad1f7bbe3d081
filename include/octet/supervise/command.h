// The command line of a job: the launcher's arguments, the program, its configuration; and the places (hosts,
// ranks) that the former name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octet::supervise {

using Strings = std::vector<std::string>;

/// `launch/mpirun's arguments` `trainer` `config.yaml key=value ...`.
struct Command {
  Strings launcher;   ///< the launcher and its arguments
  Strings program;    ///< its name, and `train` if it is given
  Strings arguments;  ///< of the program: a configuration and overrides

  /// All words, followed by more overrides.
  Strings words(const Strings& overrides = {}) const;
};

/// Whether a word names a file that can be executed: looked for on PATH where it has no slash.
bool is_program(const std::string& word);

/// Finds the program among `words`, which follow the launcher: the first executable that a configuration (or
/// `train`) follows, else the first that key=value follows. Throws Error (usage) if there is none, for a
/// command other than training, and for several programs in one job (mpirun's colon).
Command parse_command(const std::string& launcher, const Strings& words,
                      const std::function<bool(const std::string&)>& executable = is_program);

/// The number of ranks that the launcher's arguments ask for (-np, -n, --np, -c); nothing where they leave it
/// to the hosts.
std::optional<int> ranks_of(const Command& command);
/// Another number of ranks; ranks_of() is something.
void set_ranks(Command& command, int ranks);

struct Host {
  std::string name;
  int slots = 1;  ///< ranks that may be there
};

/// The hosts that the launcher's arguments name by --host or a hostfile, in their order; empty where they
/// name none. Throws Error (usage) when a hostfile cannot be read.
std::vector<Host> hosts_of(const Command& command);
/// Throws Error (usage) for a hostfile among the launcher's arguments that cannot be read.
void require_hostfiles(const Command& command);
/// Removes a host; one --host replaces the options that named hosts. Returns the number of slots left.
/// Returns nothing and changes nothing if the command does not name the host, or if it is the last host.
std::optional<int> leave_out(Command& command, const std::string& host);

}  // namespace octet::supervise
