// Messages over MPI. The thread that makes it is the one that MPI knows as its main thread. It makes the
// first call and the last, and all others too where MPI allows no other thread to (MPI_THREAD_FUNNELED).
#pragma once

#include <memory>
#include <vector>

#include "transport.h"

namespace octet::comm {

/// Initialises MPI. Throws Error when MPI is initialised already or does not let a thread besides main() call
/// it.
std::unique_ptr<Transport> make_mpi_transport();

/// Of the ranks that are left, when the transport before it has let go of those that ended. All of them make
/// it. Lanes are opened anew.
std::unique_ptr<Transport> make_survivors_transport();
/// The ranks that it left out, by their numbers before.
std::vector<int> ranks_lost();

}  // namespace octet::comm
