// Messages over MPI. The creating thread is the main thread for MPI. It makes the first and the last call. If
// MPI allows no other thread (MPI_THREAD_FUNNELED), it makes all other calls too.
#pragma once

#include <memory>
#include <vector>

#include "messages/transport.h"

namespace octet::comm {

/// Initialises MPI. Throws Error if MPI is initialised already or supports no threads
/// (MPI_THREAD_SINGLE).
std::unique_ptr<Transport> make_mpi_transport();

/// Creates the transport of the surviving ranks after the previous transport has released the ended ranks.
/// All survivors create it. Lanes must be opened again.
std::unique_ptr<Transport> make_survivors_transport();
/// Returns the ranks that it left out, by their old numbers.
std::vector<int> ranks_lost();

}  // namespace octet::comm
