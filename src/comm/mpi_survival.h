// Going on without ranks that ended: MPI's user-level failure mitigation (ULFM). Open MPI has it from 5.0 on,
// when its mpirun is started with `--with-ft ulfm`; elsewhere an ended rank ends the job.
#pragma once

#include <mpi.h>

#include <vector>

namespace octet::comm {

/// Whether the MPI that this process runs with has it. Looked up by name, so that a program which was built
/// with an older Open MPI has it too where it runs with a newer one.
bool has_ulfm();

/// Whether an error code of MPI says that a rank has ended, or that another one that noticed it has revoked
/// the communicator.
bool tells_of_lost_ranks(int code);

/// Has all calls on this communicator fail on all ranks, those that wait included. has_ulfm().
void revoke(MPI_Comm communicator);

/// A communicator of the ranks of `all` that are left, in their order. All of them call it; none waits for
/// ranks that ended. Returns MPI's error code.
int shrink(MPI_Comm all, MPI_Comm* left);

/// The ranks of `all`, by number, that are not in `left`.
std::vector<int> missing_from(MPI_Comm all, MPI_Comm left);

}  // namespace octet::comm
