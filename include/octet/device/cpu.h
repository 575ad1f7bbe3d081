// The CPU side of streams, for code that enqueues work on them: ops and comm.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "octet/device/device.h"

namespace octet::cpu {

/// Enqueues `work` on a CPU stream. On an in_line stream it runs before the call returns.
void enqueue(Stream& stream, std::function<void()> work);

/// Enqueues a state machine: `poll` is called repeatedly until it returns true. It must not block. For
/// `served` streams.
void enqueue_resumable(Stream& stream, std::function<bool()> poll);

/// Polls the first piece of work of a `served` stream, and the next pieces as they complete. Returns true if
/// a piece completed. At most one thread may call it at a time.
bool serve(Stream& stream);

/// Called by a thread that begins to wait for a `served` stream. It may serve the stream until `done` returns
/// true. If it returns earlier, the thread sleeps.
using OnWait = std::function<void(const std::function<bool()>& done)>;
/// Sets `call`, which runs on every thread that begins to wait for the end of a `served` stream or for an
/// event recorded on it. Replaces the previous callback; empty: none. Returns when no call of the previous
/// callback is running.
void on_wait(Stream& stream, OnWait call);
/// Returns the number of threads that wait for the stream.
int waiting_for(Stream& stream);

/// Returns the threads per op of the calling thread: the number that was set last, also by make_cpu_device().
/// Otherwise the number of OMP_NUM_THREADS, or all cores.
int op_threads();
/// Sets the number of threads of ops that are enqueued from, or run on, the calling thread.
void set_op_threads(int threads);

/// Pieces of an op that threads may process concurrently, in any order.
struct Pieces {
  int count = 0;
  /// Processes one piece on thread `who` of op_threads(); 0 is the caller. Must not throw.
  void (*call)(const void* body, int piece, int who) = nullptr;
  const void* body = nullptr;
};
/// Processes all pieces on the calling thread and its op_threads() - 1 helpers, which live as long as that
/// thread. Returns when all pieces are done. It waits for a helper without a core only if that helper has
/// begun a piece.
void share(const Pieces& pieces);
/// Like share(pieces), but calls body(piece, who).
template <typename Body>
void share(int count, const Body& body) {
  share({.count = count,
         .call = [](const void* of, int piece, int who) { (*static_cast<const Body*>(of))(piece, who); },
         .body = &body});
}
/// Returns whether the current op of this thread shares its work by share(), as set by Stream::claims,
/// instead of by OpenMP. OpenMP's threads all wait for each other at the end of each op. Decoding has short
/// ops: with OpenMP it is many times slower if other processes are busy. Training uses OpenMP, because its
/// libraries start OpenMP threads, which would compete with the helpers.
bool claims();
void set_claims(bool on);

/// Returns the number of cores in the calling thread's affinity, limited by the control group's CPU quota. At
/// least 1.
int allowed_cores();

/// The best place for a rank on its node: near its GPU.
struct CoresNear {
  int numa_node = -1;  ///< -1: anywhere
  int ranks = 1;       ///< ranks of this node with the same best place, this rank included
};

/// Returns the number of threads of this process, at least 1: OMP_NUM_THREADS, or a share of the usable
/// cores, divided among the `local_ranks` ranks of this node. `local_rank` is the number of this rank. First
/// resets an affinity that a launcher set unasked: Open MPI binds ranks to single cores if there are at most
/// two ranks. If `near` names a NUMA node, the calling thread and its later threads stay on the cores of that
/// node. The ranks near that node divide these cores, unless the share becomes too small (share_near()).
int claim_cores(int local_rank, int local_ranks, const CoresNear& near = {});

/// The threads of the ranks of a host, and the cores for them.
struct Crowd {
  int ranks = 1;
  int threads = 1;     ///< of each rank
  int cores = 1;       ///< for all ranks
  bool told = false;   ///< OMP_NUM_THREADS gives the threads
  bool bound = false;  ///< OpenMP binds the threads of each rank, and may use all cores of the host
};
/// Returns the ranks of this host with the threads and cores of the calling thread.
Crowd crowd_of(int local_ranks);
/// Returns why threads wait for cores from the start, with what to do; empty if there are enough cores.
std::string crowd_text(const Crowd& crowd);

/// Returns the number of cores of a rank if `ranks_there` ranks divide the `near_cpus` cores that are best
/// for them. At most `share`, the rank's share of the whole machine. Returns 0 if the number would be less
/// than half of `share`. The rank then uses the cores that it has.
int share_near(int share, int near_cpus, int ranks_there);

/// Returns the numbers of a list in the kernel's format ("0-3,8,10-11"), in order. Empty if the format is
/// wrong.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace octet::cpu
