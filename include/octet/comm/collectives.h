// What a group of ranks computes together, on streams (docs/communication.md). Sums are our own and in rank
// order, so that the same numbers give the same bits at every stage, whoever carries the bytes. Two queues,
// gathers and reductions, never block each other. On the CPU they are messages of MPI, in resumable state
// machines that whoever waits for them serves, or a thread of the rank's own; on GPUs collectives are kernels
// and exchanges of bytes by one of several carriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/carrier.h"
#include "octet/comm/channel.h"
#include "octet/comm/traffic.h"
#include "octet/device/device.h"
#include "octet/ops/wire.h"

namespace octet::comm {

/// In which format a reduction's values travel. Sums are fp32 whatever it is.
using ops::Wire;

/// An order of summation other than rank order, the same on all ranks: rank r has parts[r] >= 1 addends, all
/// ranks' in rank order are put on a stack one after the other, and after the i-th the two sums on top are
/// added merges[i] times (the lower one first). One sum is left at the end.
struct SumOrder {
  std::vector<int> parts;   ///< by rank
  std::vector<int> merges;  ///< by addend, over all ranks
};

/// One slice per rank: [size, count] in, this rank's slice of the sum out.
struct ReduceScatterArgs {
  const char* name = "";  ///< for traces: "block 3 matrices"
  /// [size * count] device memory. Where NCCL sums (Sums), the own slice holds the sum afterwards.
  const void* from = nullptr;
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

/// A slice from every rank to every other one: `to` ends with what the ranks had for this one, by rank.
struct AllToAllArgs {
  const char* name = "";
  const void* from = nullptr;  ///< [size * bytes] device memory: a slice for every rank, the own one included
  void* to = nullptr;          ///< [size * bytes] device memory apart from `from`
  std::int64_t bytes = 0;      ///< of one slice
};

/// Bytes for one other rank, which receives as many.
struct SendArgs {
  const char* name = "";
  int to = 0;                  ///< its number in the group
  const void* from = nullptr;  ///< [bytes] device memory
  std::int64_t bytes = 0;
};

/// Bytes from one other rank, which sends as many.
struct ReceiveArgs {
  const char* name = "";
  int from = 0;        ///< its number in the group
  void* to = nullptr;  ///< [bytes] device memory
  std::int64_t bytes = 0;
};

/// Values of which each rank has a part, for a sum that the stream makes by itself.
struct DirectSumArgs {
  const void* values = nullptr;  ///< [count] device memory
  const void* addend = nullptr;  ///< [count], apart from `to`: is added to the rounded sum; null: none
  void* to = nullptr;            ///< [count]; may be `values`
  DType dtype = DType::f32;      ///< f32 or bf16
  std::int64_t count = 0;
};

/// Memory of a device that all ranks have alike: the same sizes in the same order, for the same purpose.
struct SharedMemory {
  void* address = nullptr;
  std::size_t bytes = 0;
};

/// The collectives of one group of ranks. Ranks, slices and sizes are counted within the group. All its ranks
/// call the same collectives on the same queue in the same order; messages between two of them are called by
/// these two.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// This rank's, in the group.
  virtual const Place& place() const = 0;
  int rank() const { return place().rank; }
  int size() const { return place().size; }
  /// What the ranks of the group tell each other from the threads that enqueue. Never used between enqueued
  /// work and its completion by only some of them.
  virtual Channel& channel() = 0;

  /// Streams on which collectives may be enqueued; a collective completes when later work of its stream runs.
  virtual Stream& gather_stream() = 0;
  virtual Stream& reduce_stream() = 0;

  /// Sums in rank order: ((r0 + r1) + r2) + …, in fp32; by nodes, or in a given order, when args say so. In
  /// NCCL's own order where that was asked for (Carrying).
  virtual void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) = 0;
  virtual void all_gather(Stream& stream, const AllGatherArgs& args) = 0;
  virtual void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) = 0;
  virtual void all_to_all(Stream& stream, const AllToAllArgs& args) = 0;
  /// values[i] = max over ranks; NaN wins. Device memory, in place.
  virtual void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) = 0;
  /// values[i] = sum over ranks (integers, so in any order; doubles in rank order). Device memory, in place.
  virtual void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) = 0;
  virtual void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) = 0;
  /// Both, which on CPUs travel together.
  virtual void all_reduce_sums(Stream& stream, const char* name, std::int64_t* integers,
                               std::int64_t integer_count, double* doubles, std::int64_t double_count) {
    all_reduce_sum(stream, name, integers, integer_count);
    all_reduce_sum(stream, name, doubles, double_count);
  }

  /// Whether sum_directly() takes so many values: few, between GPUs of one host that write into each other's
  /// memory, each of one rank. The same on all ranks. A sum is of whole words of 8 bytes; of those fewer do
  /// as well.
  virtual bool sums_directly(std::int64_t /*count*/, DType /*dtype*/) const { return false; }
  /// Enqueues on one stream of the caller's, ever the same: the values become their sum over the ranks, in
  /// rank order, in fp32, rounded once (ops::peer_sum). It is of no queue, and may be recorded and replayed
  /// (recording.h), as long as all ranks do so alike. The communication thread does not watch it, and
  /// Traffic and seconds_busy() leave it out.
  virtual void sum_directly(Stream& stream, const DirectSumArgs& args);

  /// Messages between two ranks. A send may last until its receiver has it: two ranks that both send to each
  /// other first, on one queue, wait for ever. send_receive() does both at once, with the same rank or two.
  /// What one rank sends another on a queue is received in that order.
  void send(Stream& stream, const SendArgs& args) { pass(stream, &args, nullptr); }
  void receive(Stream& stream, const ReceiveArgs& args) { pass(stream, nullptr, &args); }
  void send_receive(Stream& stream, const SendArgs& out, const ReceiveArgs& in) { pass(stream, &out, &in); }

  /// Tells that gathers will go to this memory, so that carriers which write into the memory of others reach
  /// it: they need no staging then. All ranks call it, between steps. Optional: gathers to other memory give
  /// the same.
  virtual void share(const std::vector<SharedMemory>& memory) = 0;
  /// Takes that back, when all that was enqueued is done; only then may the memory be given back. All ranks
  /// call it.
  virtual void unshare(const std::vector<SharedMemory>& memory) = 0;

  /// Whether the time of each collective is taken, as at first; else Traffic::seconds and seconds_busy()
  /// leave out what is enqueued. On GPUs the two events for it take some 7 microseconds of a small
  /// collective. No effect among ranks on CPUs, where it takes none.
  virtual void take_times(bool on) = 0;
  /// Counters since the last call, and zeroes them.
  virtual std::vector<Traffic> take_traffic() = 0;
  /// Seconds since the collectives were made in which one of a stream was under way: begun, which is when
  /// what it waits for on its own stream was done, and not complete. Those that run side by side count once;
  /// waiting for slower ranks counts.
  virtual double seconds_busy() = 0;

  /// Who carries the bytes, in words: "peer, 368 GB/s"; empty for a lone rank.
  virtual std::string carrier() const = 0;

 private:
  /// One of them may be null.
  virtual void pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) = 0;
};

/// Bytes that the collectives of `size` ranks reserve on their device for messages on their way: 17 to 20 MB
/// on a CPU, up to 208 MiB on a GPU, none for one rank. For plans made before there is a job.
std::size_t staging_bytes(int size, DeviceKind kind);

/// False where collectives beside compute hide nothing: the ranks share a node, so that messages are work for
/// its cores, and every core is the only one that a rank computes on. What a message takes is then lost to
/// compute whenever it travels, and thread switches come on top. True for devices that are not CPUs, and
/// always where the environment says OCTETRUN_OVERLAP=always (tests: the bits must not depend on it). `place`
/// is that in the job.
bool overlap_hides(const Device& device, const Place& place);

}  // namespace octet::comm
