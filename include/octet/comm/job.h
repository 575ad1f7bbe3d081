// The ranks of a program: their places, the channels between them, and how they end together
// (docs/communication.md). Collectives on device memory are declared in octet/comm/collectives.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/channel.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"

namespace octet {
class Device;
}

namespace octet::comm {

class Collectives;

/// Ranks of the job have ended and this rank may continue without them (survive()). All collectives under way
/// are void, and every later call of the job throws this error again.
class RanksLost : public Error {
 public:
  RanksLost();
};

/// Timeout of collectives and folder of their traces.
struct WatchOptions {
  double timeout_seconds = 1800;  ///< without a message arriving or leaving, while a collective is under way
  std::string trace_folder;       ///< for collectives-rank<r>.json; empty: no files
};

/// A rank's part of a job; one object per rank. It is also the channel of the main threads of all ranks.
/// Errors of the transport end the job through abort().
class Job : public Channel {
 public:
  int rank_of_job(int rank) const override { return rank; }

  /// Opens another channel of all ranks, which a second thread may use concurrently with this one. All ranks
  /// call it from their main threads, in the same order and with the same names. Throws Error if the names or
  /// the order differ. The job must outlive the channel.
  virtual std::unique_ptr<Channel> channel(const std::string& name) = 0;
  /// Like channel(name), restricted to the ranks of a group. All ranks of the job call it, each with its own
  /// group. The group may contain only this rank.
  virtual std::unique_ptr<Channel> channel(const std::string& name, const Group& group) = 0;

  /// Creates the collectives of a group, for example along one axis of a mesh. All ranks of the job call it
  /// in the same order, each with its own group. Throws Error if the ranks pass different groups or if the
  /// carrier does not work. `device` owns the buffers; the device and the job must outlive the collectives.
  /// Between GPUs, the carrier in `carrying` is automatic, peer, nccl or host.
  virtual std::unique_ptr<Collectives> collectives(const Group& group, Device& device, Carrying carrying) = 0;

  /// Starts the watch. If nothing moves in a collective for the timeout, the job ends with exit code 75. A
  /// message names the collective (kind, name, size, queue, sequence number) and the missing ranks. Before
  /// that, a rank asks the participants for their state. It names the ranks that do not answer, and with
  /// their state the ranks that answer but wait nowhere. Only the lowest waiting rank prints the message. The
  /// latest collectives of this rank are then written to the trace folder as JSON. SIGQUIT writes them at any
  /// time, and the run continues.
  virtual void watch(const WatchOptions& options) = 0;
  /// Returns the latest collectives of this rank as JSON: kind, name, queue, sequence number, bytes, and the
  /// times of enqueueing, start and end in seconds since the rank started.
  virtual std::string trace() const = 0;
  /// Returns the traffic of channels since the last call and resets it.
  virtual std::vector<Traffic> take_traffic() = 0;

  /// Returns true after any call threw RanksLost, even if its caller caught the error.
  virtual bool others_lost() const { return false; }

  /// Ends the whole job at once with this exit code. Does not return.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// True when an MPI launcher started this process (Open MPI, MPICH/PMI, Slurm with PMIx).
bool launched_by_mpi();

/// Returns the place of this process before a job exists. Initialises MPI if a launcher started the process.
Place find_place();

/// Creates the job of this process. If a launcher started it, the job uses MPI, initialised on the
/// communication thread; otherwise it has one rank. Needs no device, so ranks can use it to agree on devices.
/// One per process.
std::unique_ptr<Job> make_job();

/// The ranks that continue after others have ended.
struct Survivors {
  Place place;            ///< of this rank among the survivors, which are renumbered in their old order
  std::vector<int> lost;  ///< the ended ranks, by their old numbers
};

/// Returns OCTETRUN_SURVIVORS, the smallest number of ranks that continue without others. 0: ranks never
/// continue.
int least_survivors();

/// Makes the surviving ranks the job of this process. make_job() returns this job after the job that threw
/// RanksLost is destroyed. All survivors call it. Waits for them for at most OCTETRUN_START_TIMEOUT. Throws
/// RanksLost if more ranks end meanwhile; call it again then. Uses MPI's user-level failure mitigation
/// (ULFM): Bland et al., "Post-failure recovery of MPI communication capability", 2013.
Survivors survive();

/// One rank without MPI, for tools and tests.
std::unique_ptr<Job> make_self_job();

/// Creates a rank at any place of a job that does not exist, for plans. Collectives do nothing, and the
/// values of other ranks are copies of this rank's value. Devices are dry devices.
std::unique_ptr<Job> make_dry_job(const Place& place);

}  // namespace octet::comm
