// The CPU side of streams, for those who put work on them: ops and comm.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "octet/device/device.h"

namespace octet::cpu {

/// Enqueues `work` on a CPU stream. On an in_line stream it runs before the call returns.
void enqueue(Stream& stream, std::function<void()> work);

/// Enqueues a state machine: `poll` is called again and again until it returns true; it must not block.
/// For `served` streams.
void enqueue_resumable(Stream& stream, std::function<bool()> poll);

/// Lets the front of a `served` stream make progress: polls its first piece of work (and the next ones as
/// they complete). Returns true when something was completed. One thread calls it at a time.
bool serve(Stream& stream);

/// What a thread does that begins to wait for a `served` stream. It may serve the stream until `done` says
/// that what it waits for is there; where it returns before, the thread sleeps.
using OnWait = std::function<void(const std::function<bool()>& done)>;
/// `call` runs on every thread that begins to wait until a `served` stream gets to an event that it recorded,
/// or to its end. Replaces the one before; empty: none. Returns when no call of the one before is under way.
void on_wait(Stream& stream, OnWait call);
/// Threads that wait so.
int waiting_for(Stream& stream);

/// Threads of one op of the calling thread: as set last, by a device made with a number, too; or what
/// OMP_NUM_THREADS says; or all cores.
int op_threads();
/// Sets the number of threads of ops enqueued from, and run on, the calling thread.
void set_op_threads(int threads);

/// Pieces of an op that threads may take side by side, in any order.
struct Pieces {
  int count = 0;
  /// Does one piece, on thread `who` of op_threads(), 0 is the caller. Must not throw.
  void (*call)(const void* body, int piece, int who) = nullptr;
  const void* body = nullptr;
};
/// Does all pieces on the calling thread and its op_threads() - 1 helpers, which live as long as that thread.
/// Returns when all are done; a helper that another process keeps from its core is not waited for, unless it
/// is amid a piece.
void share(const Pieces& pieces);
/// The same for body(piece, who).
template <typename Body>
void share(int count, const Body& body) {
  share({.count = count,
         .call = [](const void* of, int piece, int who) { (*static_cast<const Body*>(of))(piece, who); },
         .body = &body});
}
/// Whether the op that this thread runs shares its work so, as its stream says (Stream::claims), in place of
/// OpenMP's threads, which all wait for each other at the end of each op: decoding, whose ops are short, is
/// many times slower by these beside other busy processes. Training stays with OpenMP, since its library's
/// threads would stand beside the helpers.
bool claims();
void set_claims(bool on);

/// Cores of the calling thread's affinity, no more than the control group's CPU quota. At least 1.
int allowed_cores();

/// Where on its node a rank would best compute: near its GPU.
struct CoresNear {
  int numa_node = -1;  ///< -1: anywhere
  int ranks = 1;       ///< of this node that would best compute there, itself included
};

/// Threads of this process: what OMP_NUM_THREADS says, or a share of the cores that it may use, divided among
/// `local_ranks` ranks of this node; this one is number `local_rank`. At least 1. An affinity that a launcher
/// set without being asked is reset first (Open MPI binds ranks to single cores when there are at most two).
/// Where `near` names a NUMA node, the calling thread and those that it starts from now on stay on its cores,
/// and its ranks divide these, unless that leaves them much less (share_near()).
int claim_cores(int local_rank, int local_ranks, const CoresNear& near = {});

/// A rank's share of `there` cores that are best for `ranks_there` ranks, when `share` is what it has of the
/// whole machine: no more than that, and 0, which is to say that it stays where it is, when that would leave
/// it less than half.
int share_near(int share, int there, int ranks_there);

/// The numbers in a list as the kernel writes them ("0-3,8,10-11"), in order. Empty for what is no such list.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace octet::cpu
