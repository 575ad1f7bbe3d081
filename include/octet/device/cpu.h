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

/// Threads of one op of the calling thread: as set last, by a device made with a number, too; or all cores.
int op_threads();
/// Sets the number of threads of ops enqueued from, and run on, the calling thread.
void set_op_threads(int threads);

/// Cores of the calling thread's affinity, no more than the control group's CPU quota. At least 1.
int allowed_cores();

/// Where on its node a rank would best compute: near its GPU.
struct CoresNear {
  int numa_node = -1;  ///< -1: anywhere
  int ranks = 1;       ///< of this node that would best compute there, itself included
};

/// Cores that this process may use, after resetting an affinity that a launcher set without being asked
/// (Open MPI binds ranks to single cores when there are at most two), divided among `local_ranks` ranks of
/// this node; this one is number `local_rank`. At least 1. Where `near` names a NUMA node, the calling thread
/// and those that it starts from now on stay on its cores, and its ranks divide these, unless that leaves
/// them much less (share_near()).
int claim_cores(int local_rank, int local_ranks, const CoresNear& near = {});

/// A rank's share of `there` cores that are best for `ranks_there` ranks, when `share` is what it has of the
/// whole machine: no more than that, and 0, which is to say that it stays where it is, when that would leave
/// it less than half.
int share_near(int share, int there, int ranks_there);

/// The numbers in a list as the kernel writes them ("0-3,8,10-11"), in order. Empty for what is no such list.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace octet::cpu
