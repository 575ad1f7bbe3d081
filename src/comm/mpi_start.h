// How ranks begin over MPI: its start, who they are, where they are, and how long that may take.
#pragma once

#include <string>
#include <vector>

#include "deadline.h"
#include "mpi_world.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// Makes World::of_process. Throws Error where MPI is initialised already, or does not start.
void start_mpi();

/// What every rank says of itself (introduction() in same_build.h), before anything that another version may
/// say otherwise.
std::vector<std::string> introductions(const World& world);

/// The rank's place among all. Ends the job where a rank's MPI allows no thread beside the one that calls it.
Place find_place(const World& world);

/// Ends this process, and so the job, when `what`, in which all ranks take part, lasts too long; the lowest
/// `rank` that waits speaks first.
Deadline until_over(const char* what, int rank);

}  // namespace octet::comm
