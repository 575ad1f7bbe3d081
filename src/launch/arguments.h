// Checks the arguments of launch/mpirun before mpirun is called.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace octet::launch {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

/// Returns the value of a variable; "" if it is not set.
const std::string& value_in(const Environment& environment, const std::string& name);
/// Whether a variable is a whole number above `least`.
bool is_above(const Environment& environment, const std::string& name, int least);

/// An option of mpirun about hosts or ranks.
struct OptionValue {
  std::string name;
  std::string value = {};
  std::size_t word = 0;   ///< index of the word with the value; the number of words: there is none
  std::size_t start = 0;  ///< index of the value in this word
};
/// Returns these options of all programs of a call, in order. Words after the name of a program are its own.
std::vector<OptionValue> options_of(const Words& words, const Environment& environment);
/// Whether an option of Open MPI or MPICH is followed by a hostfile.
bool is_hostfile(const std::string& option);
/// Variables with the path of a hostfile of Open MPI.
inline constexpr std::array kHostfileVariables{"OMPI_MCA_orte_default_hostfile",
                                               "PRTE_MCA_prte_default_hostfile"};

/// Throws Error (usage) for hosts, hostfiles and numbers of ranks that mpirun cannot use. Returns the number
/// of ranks after -np, or 1.
int require_usable_call(const Words& words, const Environment& environment);

/// Whether hosts are named: by mpirun's options, by a Slurm allocation, or by a host file of Open MPI.
bool has_hosts(const Words& words, const Environment& environment);

/// Whether the words start `trainer`. False for `trainer verify`, which removes its files and then ends by
/// the signal.
bool runs_trainer(const Words& words);

/// Throws Error (usage) if system limits are too low for mpirun and `ranks` ranks on this host.
void require_limits(int ranks, const Words& words);

/// Checks for a Slurm step with several tasks, which would each start a separate run. Throws Error (usage) in
/// one task and returns false in the others, which print nothing.
bool is_only_launcher(const Words& words, const std::string& called, const Environment& environment);

/// Returns the words as one line.
std::string line_of(const Words& words);

}  // namespace octet::launch
