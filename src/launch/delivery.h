// Hands requests to stop and to save on to the ranks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <utility>

#include "mpi.h"
#include "octet/launch/processes.h"

namespace octet::launch {

class Delivery {
 public:
  /// `hosts`: whether ranks may run on other hosts.
  Delivery(Mpi mpi, pid_t mpirun, bool hosts);

  /// Keeps a request for the ranks: SIGUSR2 for a stop, SIGUSR1 for a save.
  void ask(int signal);
  /// Sends requests to the ranks that can take them. Called several times a second: ranks that are still
  /// loading get them later. Ends a job if its ranks do not take a stop.
  void deliver();

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    int asked = 0;              ///< how often
    bool answered = false;      ///< whether a process has got it
    std::map<pid_t, int> told;  ///< how many of the requests each process has got
  };

  void send(int signal, Request& request);
  bool is_overdue() const;
  void force_stop();
  bool runs_another_program() const;
  bool has_ranks() const;

  Mpi mpi_;
  pid_t mpirun_;
  bool forwards_;  ///< mpirun hands signals on to ranks of other hosts
  bool hosts_;
  Clock::time_point started_ = Clock::now();
  std::optional<Clock::time_point> since_;  ///< of the first stop, or the first save before it
  bool told_early_ = false;
  std::map<int, Request> requests_;
};

/// Whether ranks of this host run below mpirun.
bool has_ranks_below(pid_t mpirun);

/// Ends mpirun by a signal that no other program sends, and kills all processes below it. The signal tells
/// why.
void end_job(pid_t mpirun, int signal);
/// Why: MPI could not start in a rank; a host does not answer; a stop came before there were ranks.
inline constexpr int kMpiFailed = SIGPROF, kHostSilent = SIGSTKFLT, kStoppedBeforeRanks = SIGPWR;

/// Whether mpirun waits for a host that is gone: the kernel has sent the same bytes again and again.
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
