// The arguments of launch/mpirun: what mpirun could not use is refused before it is called.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace octet::launch {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

/// The value of a variable; empty when it is not set.
const std::string& value_in(const Environment& environment, const std::string& name);
/// Whether a variable is a whole number above `least`.
bool is_above(const Environment& environment, const std::string& name, int least);

/// Throws Error (usage) for hosts, hostfiles and numbers of ranks that mpirun cannot use. Returns the number
/// of ranks after -np, or 1.
int require_usable_call(const Words& words, const Environment& environment);

/// Whether hosts are named: by mpirun's options, by an allocation of Slurm's, or by a file of Open MPI's.
bool has_hosts(const Words& words, const Environment& environment);

/// Whether the words start `trainer`. False for `trainer verify`, which removes its files and then ends by
/// the signal that it got.
bool runs_trainer(const Words& words);

/// Throws Error (usage) when limits of the system are too low for mpirun and so many ranks of this host.
void require_limits(int ranks, const Words& words);

/// Each task of a step of Slurm would start a separate run. Throws Error (usage) in one of them; returns
/// false in the others, which have nothing to say.
bool is_only_launcher(const Words& words, const std::string& called, const Environment& environment);

/// The words as one line.
std::string line_of(const Words& words);

}  // namespace octet::launch
