// Hostfiles and lists of hosts, as Open MPI and MPICH write them. What mpirun could not read, or would read
// in another sense, is an error here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::launch {

/// A host and the number of ranks that may run there, at least 1.
struct HostSlots {
  std::string name;
  int slots = 1;
};

/// The most ranks of a host, and of a job.
inline constexpr int kMostSlots = 9'999'999;

/// A whole number from 1 to kMostSlots without sign or leading zero; nothing for any other text.
std::optional<int> count_of(std::string_view text);

/// The hosts of a file with lines `NAME slots=N` (Open MPI) or `NAME:N` (MPICH), in their order. A line
/// without a number means one rank; text after # is a comment. Throws Error (usage) for a file that
/// cannot be read, names no host, ends lines with CR LF, or ends in a comment without a line end.
std::vector<HostSlots> read_hostfile(const std::string& path);

/// The hosts of a list `NAME[:N],...` as --host takes it; `where` says in a message where the list is. Throws
/// Error (usage).
std::vector<HostSlots> parse_host_list(std::string_view list, const std::string& where);

}  // namespace octet::launch
