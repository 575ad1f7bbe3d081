// Options of mpirun that launch/mpirun and launch/supervise read, and the files of a program name.
#pragma once

#include <string>
#include <vector>

namespace octet::launch {

/// Whether an option of mpirun is followed by a list of hosts, by a hostfile, or by the number of ranks.
bool names_hosts(const std::string& option);
bool names_hostfile(const std::string& option);
bool counts_ranks(const std::string& option);

/// The executable files of a name: the name itself when it has a slash, otherwise all matches in the folders
/// of `path`, which is written as PATH is. An empty `path` means the system's folders.
std::vector<std::string> files_of_program(const std::string& name, const std::string& path);

}  // namespace octet::launch
