// The MPI state of a process from MPI_Init to MPI_Finalize, and the translation of MPI errors.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/mpi/exception.hpp>
#include <string>
#include <vector>

namespace octet::comm {

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
