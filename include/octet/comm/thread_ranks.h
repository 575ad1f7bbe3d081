// Ranks as threads of one process, for tests: the same code over memory instead of MPI.
#pragma once

#include <functional>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"

namespace octet::comm {

struct ThreadRanksOptions {
  int ranks = 2;
  bool compute_worker = false;  ///< as in CpuOptions
  int threads_per_rank = 1;
  std::vector<int> node_of = {};  ///< by rank: a number for each of the nodes to play; empty: all on one
  /// Bandwidth of a rank's outgoing link, which sends one message after the other; 0: memory speed.
  double bytes_per_second = 0;
  DeviceKind stands_for = DeviceKind::cpu;  ///< as in CpuOptions
  /// `messages`, or `peer` or `host`: collectives use exchanges and kernels on streams, as on GPUs.
  Carrier carrier = Carrier::messages;
};

/// Runs `body` on `ranks` threads of this process, each with a separate job and device. Rethrows the first
/// exception. `options.carrier` applies to the second overload.
void run_ranks_as_threads(const ThreadRanksOptions& options, const std::function<void(Job&, Device&)>& body);
/// Like the first overload, and passes the collectives of all ranks.
void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Job&, Collectives&, Device&)>& body);

}  // namespace octet::comm
