// launch/check-hosts: finds problems of the hosts of a hostfile before a run.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace octet::launch {

/// Checks the hosts of a hostfile, and prints the findings to standard output. `words` are the arguments of
/// launch/check-hosts. `called` is the file of this script; messages quote it. Each host is reached by ssh,
/// or by the agent that Open MPI's variables name.
///
/// 1. Each host answers questions about its program, MPI, folder, paths, limits and clock.
/// 2. If nothing is wrong, each host connects to ports of each other host.
/// 3. If nothing is wrong, `trainer verify` runs on all ranks, unless `-n` is given.
///
/// Returns 0, 1 if something is wrong, 64 for a wrong call, or 128 + N after signal N. Blocks signals like
/// launch() does.
int check_hosts(const std::vector<std::string>& words, const std::string& called,
                const std::map<std::string, std::string>& environment);

}  // namespace octet::launch
