// Messages over MPI. The thread that makes it is the one that MPI knows as its main thread. It makes the
// first call and the last, and all others too where MPI allows no other thread to (MPI_THREAD_FUNNELED).
#pragma once

#include <memory>

#include "transport.h"

namespace octet::comm {

/// Initialises MPI. Throws Error when MPI is initialised already or does not let a thread besides main() call
/// it.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace octet::comm
