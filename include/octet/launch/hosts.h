// Hostfiles and lists of hosts, as Open MPI, MPICH, DeepSpeed and Slurm write them. Text that mpirun cannot
// read, or would read in another sense, is an error here.
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
  bool is_counted = false;  ///< the number is written in the file
  int most = 0;             ///< max_slots of Open MPI; 0: none
};

/// The most ranks of a host, and of a job.
inline constexpr int kMostSlots = 9'999'999;

/// A whole number from 1 to kMostSlots without sign or leading zero; nothing for any other text.
std::optional<int> count_of(std::string_view text);

/// The hosts of a file, in their order. A line is `NAME slots=N` (Open MPI, DeepSpeed), `NAME:N` (MPICH) or
/// `NAME`. In place of NAME there may be a list with commas and with Slurm's ranges: `node[01-04,07],gpu1`.
/// The number then belongs to each host. A line without a number means one rank. Text after # is a comment.
/// Throws Error (usage) for a file that cannot be read, names no host, ends lines with CR LF, or ends in a
/// comment without a line end. A message names the line.
std::vector<HostSlots> read_hostfile(const std::string& path);

/// The mpirun that reads a file.
enum class HostfileReader { open_mpi, mpich };
/// Returns the hosts of a file in the form that this mpirun reads. Nothing: mpirun reads the file as it is.
/// Throws like read_hostfile().
std::optional<std::string> translated_hostfile(const std::string& path, HostfileReader reader);

/// The hosts of a list `NAME[:N],...` as --host takes it; `where` says in a message where the list is. Throws
/// Error (usage).
std::vector<HostSlots> parse_host_list(std::string_view list, const std::string& where);

}  // namespace octet::launch
