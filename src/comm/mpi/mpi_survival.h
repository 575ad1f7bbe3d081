// Continues without ended ranks by MPI's user-level failure mitigation (ULFM). Open MPI provides it from 5.0
// if its mpirun is started with `--with-ft ulfm`. Otherwise an ended rank ends the job.
#pragma once

#include <mpi.h>

#include <vector>

namespace octet::comm {

/// Returns whether the running MPI has ULFM. Looked up by name, so a program built with an older Open MPI can
/// use it with a newer one.
bool has_ulfm();

/// Returns whether an MPI error code means that a rank has ended, or that another rank has revoked the
/// communicator for that reason.
bool tells_of_lost_ranks(int code);

/// Makes all calls on this communicator fail on all ranks, including waiting calls. Requires has_ulfm().
void revoke(MPI_Comm communicator);

/// Creates a communicator of the surviving ranks of `all`, in their order. All survivors call it; it does not
/// wait for ended ranks. Returns MPI's error code.
int shrink(MPI_Comm all, MPI_Comm* left);

/// The ranks of `all`, by number, that are not in `left`.
std::vector<int> missing_from(MPI_Comm all, MPI_Comm left);

}  // namespace octet::comm
