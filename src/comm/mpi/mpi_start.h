// Start of ranks over MPI: initialisation with a time limit, introductions, and places.
#pragma once

#include <boost/mpi/communicator.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "job/deadline.h"
#include "mpi/mpi_world.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

// Selects the rank that prints why a job ends.

/// Each rank waits this much longer than the rank below it before it prints why the job ends.
constexpr auto turn_to_speak = std::chrono::milliseconds(300);

/// Whether this rank prints why the job ends. Often several ranks detect the same failure, and an abort takes
/// time. One rank should print, preferably the lowest. Each rank therefore waits longer than the ranks below
/// it, and announces over `channel` that it prints. Returns false once another rank has announced it.
bool may_speak(const boost::mpi::communicator& channel, const Place& place);

/// Initialises MPI and World::of_process. Throws Error if MPI is initialised already or does not start.
void start_mpi();

/// Gathers the introduction of every rank (introduction() in same_build.h). Must precede any message that may
/// differ between versions.
std::vector<std::string> introductions(const World& world);

/// Returns the place of this rank in the job. Ends the job if a rank's MPI supports no threads
/// (MPI_THREAD_SINGLE).
Place find_place(const World& world);

/// Returns a deadline that ends this process, and so the job, if the collective step `what` takes too long.
/// The deadline grows with `rank`, so the lowest waiting rank prints first.
Deadline until_over(const char* what, int rank);

}  // namespace octet::comm
