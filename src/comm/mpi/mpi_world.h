// The MPI state of a process from MPI_Init to MPI_Finalize, and the translation of MPI errors.
#pragma once

#include <mpi.h>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/mpi/exception.hpp>

#include <string>
#include <vector>

namespace octet::comm {

// Continues without ended ranks by MPI's user-level failure mitigation (ULFM). Open MPI provides it from 5.0
// if its mpirun is started with `--with-ft ulfm`. Otherwise an ended rank ends the job.

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

/// Throws Error for MPI's error codes, or RanksLost if a code reports that ranks have ended. `call` names the
/// function. The caller that runs the collective adds its name and ends the job.
void must(int code, const char* call);

/// Like must(), for Boost.MPI calls, which throw.
template <typename Call>
auto guarded(Call&& call) {
  try {
    return call();
  } catch (const boost::mpi::exception& error) {
    must(error.result_code(), error.routine());
    throw;
  }
}

/// Returns MPI's description of itself: "Open MPI v4.1.4".
std::string mpi_library_version();

/// Returns whether an error code means that a message was longer than the receive buffer.
bool truncated(int code);

/// The communicators of a process. Without an orderly end they are not freed, because MPI's last calls would
/// wait for ended ranks.
struct World {
  /// Initialises MPI.
  World();

  boost::mpi::environment environment;        // destroyed last
  boost::mpi::threading::level thread_level;  ///< allowed by MPI
  boost::mpi::communicator all;
  boost::mpi::communicator last_words;  ///< for messages of ranks before they end the job
  std::vector<boost::mpi::communicator> lanes;
  std::vector<int> lost;  ///< ended ranks, numbered as before the latest loss
  bool lost_any = false;

  /// Removes the ended ranks and releases all channels. All survivors call it. Revoked communicators are not
  /// freed, because all their ranks would have to free them together.
  void leave_out_the_lost();

  static World* of_process;  ///< null before MPI's start and after its end
};

}  // namespace octet::comm
