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
  /// Of the link by which a rank sends, one message after the other; 0: as fast as memory.
  double bytes_per_second = 0;
  DeviceKind stands_for = DeviceKind::cpu;  ///< as in CpuOptions
  /// messages; or peer, host: collectives are made of exchanges and kernels on streams, as on GPUs.
  Carrier carrier = Carrier::messages;
};

/// Runs `body` on `ranks` threads of this process, each with a job and a device of its own. Rethrows the
/// first exception. The carrier is that of the second form.
void run_ranks_as_threads(const ThreadRanksOptions& options, const std::function<void(Job&, Device&)>& body);
/// The same with collectives of all ranks.
void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Job&, Collectives&, Device&)>& body);

}  // namespace octet::comm
