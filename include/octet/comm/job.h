// The ranks of a program: where each of them stands, what they tell each other, and how they end together
// (docs/communication.md). What they compute together is another matter: octet/comm/collectives.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/carrier.h"
#include "octet/comm/channel.h"
#include "octet/comm/mesh.h"
#include "octet/comm/traffic.h"

namespace octet {
class Device;
}

namespace octet::comm {

class Collectives;

/// Ranks of the job have ended, and this one may go on without them (survive()). What was under way is void,
/// and every later call of the job throws this again.
class RanksLost : public Error {
 public:
  RanksLost();
};

/// When a collective counts as lost, and where its rank says what it did.
struct WatchOptions {
  double timeout_seconds = 1800;  ///< without a message arriving or leaving, while a collective is under way
  std::string trace_folder;       ///< for collectives-rank<r>.json; empty: no files
};

/// A rank's part of a job; one object per rank. It is a channel too: that of all ranks' main threads. Errors
/// of the transport end the job through abort().
class Job : public Channel {
 public:
  int rank_of_job(int rank) const override { return rank; }

  /// Another channel of all ranks, which a second thread may use while this one is in use. All ranks call it
  /// from their main threads, in the same order and with the same names; throws Error where they do not. The
  /// job outlives it.
  virtual std::unique_ptr<Channel> channel(const std::string& name) = 0;
  /// The same of the ranks of a group only. All ranks of the job call it, each with its own group, which may
  /// be this rank alone.
  virtual std::unique_ptr<Channel> channel(const std::string& name, const Group& group) = 0;

  /// The collectives of a group. All ranks of the job call it, in the same order, each with its own group:
  /// those along one axis of a mesh, say. Throws Error where the ranks mean different groups, and where the
  /// carrier does not work. `device` is where their buffers lie; it and the job outlive them. `carrying` is
  /// between GPUs: automatic, peer, nccl or host.
  virtual std::unique_ptr<Collectives> collectives(const Group& group, Device& device, Carrying carrying) = 0;

  /// From now on a collective in which nothing moves for that long ends the job with exit code 75 and a
  /// message that names it (kind, name, size, queue, sequence number) and the ranks that did not come: before
  /// it speaks, a rank asks those that take part where they are, and names those that do not answer, or that
  /// answer and wait nowhere, with what they say; the lowest rank that waits speaks for all. The latest
  /// collectives of this rank then lie in the trace folder as JSON; SIGQUIT writes them at any time, and the
  /// run goes on.
  virtual void watch(const WatchOptions& options) = 0;
  /// The latest collectives of this rank as JSON: kind, name, queue, sequence number, bytes, and when each
  /// was enqueued, begun and done, in seconds since the rank started.
  virtual std::string trace() const = 0;
  /// What channels have carried since the last call, and zeroes it.
  virtual std::vector<Traffic> take_traffic() = 0;

  /// True once a call threw RanksLost, whatever its caller made of that.
  virtual bool others_lost() const { return false; }

  /// Ends the whole job at once with this exit code. Does not return.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// True when an MPI launcher started this process (Open MPI, MPICH/PMI, Slurm with PMIx).
bool launched_by_mpi();

/// Where this process stands, before there is a job: initialises MPI when a launcher started it.
Place find_place();

/// The job of this process: MPI's when a launcher started it (initialised on the communication thread), else
/// one rank alone. Needs no device: ranks can agree upon theirs over it. One per process.
std::unique_ptr<Job> make_job();

/// Ranks that go on where others have ended.
struct Survivors {
  Place place;            ///< of this rank among them, who are numbered anew in their old order
  std::vector<int> lost;  ///< the others, by their numbers before
};

/// The smallest number of ranks that are to go on without others, OCTETRUN_SURVIVORS; 0: none are.
int least_survivors();

/// Makes those that are left the job of this process: make_job() gives it, once the one that threw RanksLost
/// is gone. All ranks that are left call it; waits for them, at most OCTETRUN_START_TIMEOUT. Throws RanksLost
/// where more end meanwhile: then it is called again. It is MPI's user-level failure mitigation (ULFM): Bland
/// et al., "Post-failure recovery of MPI communication capability", 2013.
Survivors survive();

/// One rank without MPI, for tools and tests.
std::unique_ptr<Job> make_self_job();

/// A rank at any place of a job that does not exist, for plans: collectives do nothing, and what is asked of
/// the others is this rank's own answer. Devices are dry ones.
std::unique_ptr<Job> make_dry_job(const Place& place);

}  // namespace octet::comm
