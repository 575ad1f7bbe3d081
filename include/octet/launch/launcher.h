// launch/mpirun: starts ranks with an mpirun of this machine, hands requests on to them, and turns what
// mpirun says into one message for each cause.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace octet::launch {

/// Runs an mpirun with `words`, the arguments of launch/mpirun, and waits until it has ended. `called` is the
/// name that the user typed for this program; messages quote it. Writes to standard error.
///
/// - HUP, INT, TERM and USR2 reach the ranks as USR2, which asks them to save and stop. USR1 reaches them as
///   USR1, which asks them to save. A request waits until the ranks have a handler for it.
/// - When this process ends, mpirun and its ranks end, however this process ended.
/// - When a host does not answer any more, mpirun is ended.
///
/// Returns the exit code: the program's (docs/checkpoints.md), 76 for a stop before the first step, 128 + N
/// after signal N. Blocks the signals above in this process for good.
int launch(const std::vector<std::string>& words, const std::string& called,
           std::map<std::string, std::string> environment);

/// `NAME=value` strings, as a process gets them, by name.
std::map<std::string, std::string> environment_of(const char* const* variables);

}  // namespace octet::launch
