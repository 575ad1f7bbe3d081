// Passes requests to stop and to save to the ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <utility>

#include "mpi.h"
#include "octet/base/timing.h"
#include "octet/launch/processes.h"

namespace octet::launch {

class Delivery {
 public:
  /// `hosts`: whether ranks may run on other hosts.
  Delivery(Mpi mpi, pid_t mpirun, bool hosts);

  /// Stores a request for the ranks: SIGUSR2 for a stop, SIGUSR1 for a save.
  void ask(int signal);
  /// Sends requests to the ranks that can take them. Called several times a second: ranks that are still
  /// loading get them later. Ends a job if its ranks do not take a stop.
  void deliver();

 private:
  struct Request {
    int asked = 0;              ///< number of requests
    bool answered = false;      ///< a process has received it
    std::map<pid_t, int> told;  ///< number of requests that each process has received
  };

  void send(int signal, Request& request);
  bool is_overdue() const;
  void force_stop();
  bool runs_another_program() const;
  bool has_ranks() const;

  Mpi mpi_;
  pid_t mpirun_;
  bool forwards_;  ///< mpirun forwards signals to ranks of other hosts
  bool hosts_;
  Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> since_;  ///< time of the first stop, or of the first save before it
  bool told_early_ = false;
  std::map<int, Request> requests_;
};

/// Whether ranks of this host run below mpirun.
bool has_ranks_below(pid_t mpirun);

/// Ends mpirun by a signal that no other program sends, and kills all processes below it. The signal encodes
/// the reason.
void end_job(pid_t mpirun, int signal);
/// Reasons: MPI could not start in a rank; a host does not answer; a stop came before there were ranks.
inline constexpr int kMpiFailed = SIGPROF, kHostSilent = SIGSTKFLT, kStoppedBeforeRanks = SIGPWR;

/// Detects that mpirun waits for a host that is gone: the kernel retransmits the same bytes again and again.
class SilentHost {
 public:
  explicit SilentHost(pid_t mpirun) : mpirun_(mpirun) {}
  bool is_waited_for();

 private:
  pid_t mpirun_;
  bool had_ranks_ = false;
  int looks_ = 0;
};

}  // namespace octet::launch
