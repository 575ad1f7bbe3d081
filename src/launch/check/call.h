// The call of launch/check-hosts.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "arguments.h"

namespace octet::launch {

/// The arguments of a call, unchanged. Missing arguments are empty, except `seconds`.
struct CheckCall {
  std::string program, folder, config;
  std::string seconds = "300";
  bool sends_messages = true;
  std::string hostfile;
  Words mpirun_options;
};

/// Reads the words after the name of the script. Returns nullopt for `-h`, a missing hostfile, an unknown
/// option, or an option without its value. Sets `complaint` in the last two cases.
std::optional<CheckCall> read_check_call(const Words& words, std::string& complaint);

/// Returns the usage, which ends with a line end.
std::string usage_of_check();

/// A checked call on this host. `program` and `folder` are absolute paths.
struct CheckOrder {
  std::string program, folder;
  std::string config;  ///< "" for none; as it was written
  std::chrono::seconds seconds{};
  bool sends_messages = true;
  std::string hostfile;  ///< as it was written
  Words mpirun_options;
  std::string launcher;  ///< the name by which messages call launch/mpirun
};

/// Checks a call, and finds the program if the call does not name it. `called` is the file of the script.
/// Throws Error (usage).
CheckOrder order_of(const CheckCall& call, const std::string& called, const Environment& environment);

/// Returns an absolute path. Keeps symbolic links, because other hosts may have other links to a shared
/// folder. Relative paths begin at the shell's folder (PWD).
std::string absolute_path(const std::string& path, const Environment& environment);

}  // namespace octet::launch
