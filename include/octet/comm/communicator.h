// The comm room: ranks and their messages (docs/communication.md). Collectives are our own and sum in rank
// order, so that the same numbers give the same bits at every stage. Two queues, gathers and reductions,
// never block each other. On the CPU one communication thread per rank makes every MPI call, in resumable
// state machines; on GPUs collectives are kernels and exchanges of bytes by one of several carriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/device/device.h"
#include "octet/ops/wire.h"

namespace octet::comm {

/// In which format a reduction's values travel. Sums are fp32 whatever it is.
using ops::Wire;

/// Bytes and times of the collectives of one kind since the counters were last taken.
struct Traffic {
  std::string kind;  ///< "reduce_scatter", "all_gather", …
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;           ///< by this rank, counted where they are handed to the transport
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks of other nodes
  double seconds = 0;                    ///< from first message posted to last one complete
};

/// An order of summation other than rank order, the same on all ranks: rank r has parts[r] >= 1 addends, all
/// ranks' in rank order are put on a stack one after the other, and after the i-th the two sums on top are
/// added merges[i] times (the lower one first). One sum is left at the end.
struct SumOrder {
  std::vector<int> parts;   ///< by rank
  std::vector<int> merges;  ///< by addend, over all ranks
};

/// One slice per rank: [size, count] in, this rank's slice of the sum out.
struct ReduceScatterArgs {
  const char* name = "";          ///< for traces: "block 3 matrices"
  const void* from = nullptr;     ///< [size * count] device memory
  DType from_dtype = DType::f32;  ///< f32, or bf16, which an f32 wire carries as it lies
  void* to = nullptr;             ///< [count]; may be the own slice of `from`, in its dtype
  DType to_dtype = DType::f32;    ///< f32, or bf16, to which the fp32 sum is rounded
  std::int64_t count = 0;         ///< elements of one slice
  bool accumulate = false;        ///< to += sum instead of to = sum
  Wire wire = Wire::f32;
  /// Sums are made inside each node first, in full precision, and only they travel in the wire's format: the
  /// ranks of a node in rank order, then the nodes in theirs. One node: everything is fp32. A rank to a node:
  /// the same as without.
  bool by_node = false;
  /// [size * count] bf16, or null. What narrow wires lost of this rank's values (of its node's sums, by
  /// nodes) is added to them, and replaced by what is lost now: over many reductions errors do not add up
  /// (error feedback; Seide et al. 2014, Karimireddy et al. 2019). Untouched where nothing is rounded.
  std::uint16_t* residual = nullptr;
  /// Null: rank order. Lives until the collective is done; wire f32 and no accumulation then.
  const SumOrder* order = nullptr;
  /// With an order: this rank's addends before `from`, each [size * count]; parts[rank] - 1 of them.
  std::vector<const float*> earlier = {};
};

/// Every rank's slice to all ranks, in place.
struct AllGatherArgs {
  const char* name = "";
  void* buffer = nullptr;  ///< [size * bytes] device memory; the own slice is in its place
  std::int64_t bytes = 0;  ///< of one slice
  bool by_node = false;    ///< to every other node once, and handed on there; the result is the same
};

/// Every rank's slice of values to all ranks, in place, in a narrow format. All ranks, the owner included,
/// end with the decoded values, so that they hold the same bits.
struct AllGatherValuesArgs {
  const char* name = "";
  void* buffer = nullptr;    ///< [size * count] device memory; the own slice is in its place
  DType dtype = DType::f32;  ///< of the buffer: f32, or bf16, to which decoded values are rounded
  std::int64_t count = 0;    ///< elements of one slice
  Wire wire = Wire::f32;     ///< f32: values travel as they lie
  bool by_node = false;      ///< as in AllGatherArgs
  /// [count] bf16, or null: what rounding loses of the own slice is added to it.
  std::uint16_t* residual = nullptr;
};

/// Memory of a device that all ranks have alike: the same sizes in the same order, for the same purpose.
struct SharedMemory {
  void* address = nullptr;
  std::size_t bytes = 0;
};

/// Who carries the bytes of collectives. The bits of all results are the same.
enum class Carrier {
  messages,   ///< MPI's, from and to memory of the host: ranks on CPUs
  automatic,  ///< the fastest of the following that works
  peer,       ///< copies into the memory of another rank of the same host
  nccl,       ///< NCCL's sends and receives
  host        ///< pinned memory of the host and messages from there
};

/// When a collective counts as lost, and where its rank says what it did.
struct WatchOptions {
  double timeout_seconds = 1800;  ///< without a message arriving or leaving, while a collective is under way
  std::string trace_folder;       ///< for collectives-rank<r>.json; empty: no files
};

/// Ranks that work together. One object per rank. All ranks call the same collectives on the same queue in
/// the same order. Errors of the transport end the job through abort().
///
/// It is a channel too: that of the ranks' main threads. Never used between enqueued work and its completion
/// by only some of the ranks.
class Communicator : public Channel {
 public:
  /// Another channel of all ranks, for a thread of its own. All ranks call it, in the same order and with the
  /// same names; throws Error where they do not.
  virtual std::unique_ptr<Channel> channel(const std::string& name) = 0;
  int rank_of_job(int rank) const override { return rank; }

  /// Streams on which collectives may be enqueued; a collective completes when later work of its stream runs.
  virtual Stream& gather_stream() = 0;
  virtual Stream& reduce_stream() = 0;

  /// Sums in rank order: ((r0 + r1) + r2) + …, in fp32; by nodes, or in a given order, when args say so.
  virtual void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) = 0;
  virtual void all_gather(Stream& stream, const AllGatherArgs& args) = 0;
  virtual void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) = 0;
  /// values[i] = max over ranks; NaN wins. Device memory, in place.
  virtual void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) = 0;
  /// values[i] = sum over ranks (integers, so in any order; doubles in rank order). Device memory, in place.
  virtual void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) = 0;
  virtual void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) = 0;

  /// Tells that gathers will go to this memory, so that carriers which write into the memory of others reach
  /// it: they need no staging then. All ranks call it, between steps. Optional: gathers to other memory give
  /// the same.
  virtual void share(const std::vector<SharedMemory>& memory) = 0;
  /// Takes that back, when all that was enqueued is done; only then may the memory be given back. All ranks
  /// call it.
  virtual void unshare(const std::vector<SharedMemory>& memory) = 0;

  /// From now on a collective in which nothing moves for that long ends the job with exit code 75 and a
  /// message that names it (kind, name, size, queue, sequence number) and the ranks that did not come: before
  /// it speaks, a rank asks all others where they are, and names those that do not answer, or that answer and
  /// wait nowhere, with what they say; the lowest rank that waits speaks for all. The latest collectives of
  /// this rank then lie in the trace folder as JSON; SIGQUIT writes them at any time, and the run goes on.
  virtual void watch(const WatchOptions& options) = 0;
  /// The latest collectives of this rank as JSON: kind, name, queue, sequence number, bytes, and when each
  /// was enqueued, begun and done, in seconds since the rank started.
  virtual std::string trace() const = 0;

  /// Counters since the last call, and zeroes them.
  virtual std::vector<Traffic> take_traffic() = 0;
  /// Seconds since the communicator was made in which a collective of a stream was under way: begun, which
  /// is when what it waits for on its own stream was done, and not complete. Collectives that run side by
  /// side count once; waiting for slower ranks counts.
  virtual double seconds_busy() = 0;

  /// Who carries the bytes of collectives, in words: "peer, 368 GB/s"; empty for a lone rank.
  virtual std::string carrier() const = 0;

  /// Ends the whole job at once with this exit code. Does not return.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// Bytes that a communicator of `size` ranks reserves on its device for messages on their way: 17 to 20 MB on
/// a CPU, 192 MiB on a GPU, none for one rank. For plans made before there is a communicator.
std::size_t staging_bytes(int size, DeviceKind kind);

/// False where collectives beside compute hide nothing: the ranks share a node, so that messages are work for
/// its cores, and every core is the only one that a rank computes on. What a message takes is then lost to
/// compute whenever it travels, and thread switches come on top. True for devices that are not CPUs, and
/// always where the environment says OCTET_OVERLAP=always (tests: the bits must not depend on it).
bool overlap_hides(const Device& device, const Place& place);

/// True when an MPI launcher started this process (Open MPI, MPICH/PMI, Slurm with PMIx).
bool launched_by_mpi();

/// The communicator of this process: MPI when a launcher started it (initialised on the communication
/// thread), else one rank alone. `device` is where collectives' buffers lie. One per process.
/// `carrier`: between GPUs; automatic, peer, nccl or host.
std::unique_ptr<Communicator> make_communicator(Device& device, Carrier carrier = Carrier::automatic);

/// One rank without MPI, for tools and tests.
std::unique_ptr<Communicator> make_self_communicator(Device& device);

/// A rank at any place of a job that does not exist, for plans: collectives do nothing, and what is asked of
/// the others is this rank's own answer. `device` is a dry one.
std::unique_ptr<Communicator> make_dry_communicator(Device& device, const Place& place);

/// Where this process stands, before any device exists: initialises MPI when a launcher started it.
Place find_place();

/// Every rank's bytes on every rank, by rank, before there is a device or a communicator: what ranks must
/// know of each other to choose a device. All ranks call it, as often as each other, and none once it has
/// made its communicator. Alone: the own bytes.
std::vector<std::string> exchange_facts(const std::string& mine);

/// Runs `body` on `ranks` threads of this process, each with a communicator and a device of its own kind: the
/// same collectives over memory instead of MPI. Rethrows the first exception. `compute_worker` as in
/// CpuOptions.
struct ThreadRanksOptions {
  int ranks = 2;
  bool compute_worker = false;
  int threads_per_rank = 1;
  std::vector<int> node_of = {};  ///< by rank: a number for each of the nodes to play; empty: all on one
  /// Of the link by which a rank sends, one message after the other; 0: as fast as memory.
  double bytes_per_second = 0;
  DeviceKind stands_for = DeviceKind::cpu;  ///< as in CpuOptions
  /// messages; or peer, host: collectives are made of exchanges and kernels on streams, as on GPUs.
  Carrier carrier = Carrier::messages;
};
void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Communicator&, Device&)>& body);

}  // namespace octet::comm
