// MPI as a process has it, from its first call to its last, and how its errors leave it.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/mpi/exception.hpp>
#include <string>
#include <vector>

namespace octet::comm {

/// Throws Error for MPI's error codes, RanksLost where one tells that ranks have ended; `call` names the
/// function. Whoever runs the collective adds its name and ends the job.
void must(int code, const char* call);

/// The same for Boost.MPI, which throws.
template <typename Call>
auto guarded(Call&& call) {
  try {
    return call();
  } catch (const boost::mpi::exception& error) {
    must(error.result_code(), error.routine());
    throw;
  }
}

/// "Open MPI v4.1.4", as MPI calls itself.
std::string mpi_library_version();

/// Whether an error code says that a message was longer than its receiver expected.
bool truncated(int code);

/// The communicators of a process. Where there is no orderly end they stay as they are: MPI's last calls
/// would wait for ranks that are gone.
struct World {
  /// Initialises MPI.
  World();

  boost::mpi::environment environment;        // goes last
  boost::mpi::threading::level thread_level;  ///< that MPI allows
  boost::mpi::communicator all;
  boost::mpi::communicator last_words;  ///< for what ranks say before they end the job
  std::vector<boost::mpi::communicator> lanes;
  std::vector<int> lost;  ///< of the ranks before the latest ones ended
  bool lost_any = false;

  /// Leaves out the ranks that ended, and lets all channels go. All that are left call it. What was revoked
  /// is not freed, which its ranks would have to do together.
  void leave_out_the_lost();

  static World* of_process;  ///< null before MPI's start and behind its end
};

}  // namespace octet::comm
