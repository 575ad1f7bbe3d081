// Collective operations of a group of ranks on streams (docs/communication.md). Sums use our own kernels in
// rank order, so results are bitwise equal at every ZeRO stage and with every carrier. The two queues,
// gathers and reductions, never block each other. On CPUs, collectives are MPI messages in resumable state
// machines. The waiting thread or the communication thread advances them. On GPUs, collectives are kernels
// and byte exchanges by one of several carriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/device/device.h"
#include "octet/ops/wire.h"

namespace octet::comm {

// Carriers of the bytes of collectives, and the choice of who computes sums.

/// Moves the bytes of collectives. All carriers give bitwise equal results.
enum class Carrier {
  messages,   ///< MPI's, from and to memory of the host: ranks on CPUs
  automatic,  ///< the fastest of the following that works
  peer,       ///< copies into the memory of another rank of the same host
  nccl,       ///< NCCL's sends and receives
  host        ///< pinned memory of the host and messages from there
};

/// Computes the sums of reductions, if values are sent unconverted and no order of sums is requested.
enum class Sums {
  ordered,    ///< our kernels, in rank order: the same bits with every carrier
  automatic,  ///< NCCL, if it carries reductions of fp32 anyway; else ordered
  nccl        ///< NCCL, in its unspecified order; bf16 sums are rounded to bf16 at every rank on their way
};

/// Configures collectives between GPUs.
struct Carrying {
  Carrying(Carrier who_carries = Carrier::automatic, Sums who_sums = Sums::ordered)
      : carrier(who_carries), sums(who_sums) {}
  Carrier carrier;
  Sums sums;
};

// Amount and duration of the ranks' communication.

/// Bytes and times of the collectives of one kind since the counters were last taken.
struct Traffic {
  std::string kind;  ///< "reduce_scatter", "all_gather", …; "control" for what channels carry
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;           ///< by this rank, counted when handed to the transport
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks of other nodes
  /// From the first message posted to the last one complete; on GPUs by timed events around each collective.
  double seconds = 0;
};

/// Bytes that one rank sends, for plans. Counts like Traffic for collectives that are sent directly or by
/// node. Collectives of more than 16 CPU ranks may divide the bytes in another way: small ones in rounds, and
/// gathers of whole nodes.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t between_nodes = 0;  ///< of these, to ranks of other nodes
  Sent& operator+=(const Sent& more) {
    bytes += more.bytes, between_nodes += more.between_nodes;
    return *this;
  }
  /// Returns the bytes of `times` such transfers.
  Sent operator*(std::int64_t times) const { return {bytes * times, between_nodes * times}; }
};
/// Returns the bytes that the rank at `place` sends in a gather of slices of `slice` bytes.
Sent sent_by_gather(const Place& place, std::int64_t slice, bool hierarchical);
/// Returns the bytes that the rank sends in a reduction of slices. A slice takes `wire` bytes between nodes,
/// or everywhere without `hierarchical`. With `hierarchical`, it takes `inside` bytes, in full precision,
/// inside a node.
Sent sent_by_reduction(const Place& place, std::int64_t wire, std::int64_t inside, bool hierarchical);

/// Format in which the values of a reduction are sent. Sums are always fp32.
using ops::Wire;

/// An order of summation other than rank order, equal on all ranks. Rank r has parts[r] >= 1 addends. The
/// addends of all ranks are pushed onto a stack in rank order. After addend i, the two topmost sums are added
/// merges[i] times, with the lower one as the first operand. One sum remains at the end.
struct SumOrder {
  std::vector<int> parts;   ///< by rank
  std::vector<int> merges;  ///< by addend, over all ranks
};

/// Input: [size, count], one slice per rank. Output: this rank's slice of the sum, [count].
struct ReduceScatterArgs {
  const char* name = "";  ///< for traces: "block 3 matrices"
  /// [size * count] device memory. If NCCL sums (Sums), the own slice holds the sum afterwards.
  const void* from = nullptr;
  DType from_dtype = DType::f32;  ///< f32, or bf16, which an f32 wire sends unconverted
  void* to = nullptr;             ///< [count]; may be the own slice of `from`, in its dtype
  DType to_dtype = DType::f32;    ///< f32, or bf16, to which the fp32 sum is rounded
  std::int64_t count = 0;         ///< elements of one slice
  bool accumulate = false;        ///< to += sum instead of to = sum
  Wire wire = Wire::f32;
  /// Values are first summed inside each node in full precision, in rank order. Only the node sums are sent
  /// in the wire format, and they are added in node order. With one node, everything is fp32. With one rank
  /// per node, the result equals that without `hierarchical`.
  bool hierarchical = false;
  /// [size * count] bf16, or null: error feedback (Seide et al. 2014, Karimireddy et al. 2019). The residual
  /// holds the rounding error of narrow wires for this rank's values, or for its node's sums if
  /// `hierarchical`. It is added to the values before encoding and replaced by the new rounding error, so
  /// errors do not accumulate over reductions. It is unchanged if nothing is rounded.
  std::uint16_t* residual = nullptr;
  /// Null: rank order. Must live until the collective is complete. Requires wire f32 and no accumulation.
  const SumOrder* order = nullptr;
  /// This rank's addends before `from`, each [size * count] in `from_dtype`. With an order: parts[rank] - 1
  /// of them. Without an order: equally many on all ranks. Each is then encoded like `from`, and the sum has
  /// the addends of the first rank, then of the second, …; `hierarchical` and residuals are not allowed.
  std::vector<const void*> earlier = {};
};

/// Sends every rank's slice to all ranks, in place.
struct AllGatherArgs {
  const char* name = "";
  void* buffer = nullptr;     ///< [size * bytes] device memory; the own slice is in its place
  std::int64_t bytes = 0;     ///< of one slice
  bool hierarchical = false;  ///< each other node receives it once and forwards it; the result is the same
};

/// Sends every rank's slice of values to all ranks, in place, in a narrow format. All ranks, including the
/// owner, end with the decoded values, so they hold the same bits.
struct AllGatherValuesArgs {
  const char* name = "";
  void* buffer = nullptr;     ///< [size * count] device memory; the own slice is in its place
  DType dtype = DType::f32;   ///< of the buffer: f32, or bf16, to which decoded values are rounded
  std::int64_t count = 0;     ///< elements of one slice
  Wire wire = Wire::f32;      ///< f32: values are sent unconverted
  bool hierarchical = false;  ///< each other node receives it once and forwards it; the result is the same
  /// [count] bf16, or null. The rounding error of the own slice is added to it.
  std::uint16_t* residual = nullptr;
};

/// Sends a slice from every rank to every other rank. `to` receives the slices for this rank, by source rank.
struct AllToAllArgs {
  const char* name = "";
  const void* from = nullptr;  ///< [size * bytes] device memory: a slice for every rank, the own one included
  void* to = nullptr;          ///< [size * bytes] device memory that does not overlap `from`
  std::int64_t bytes = 0;      ///< of one slice
};

/// Bytes for one other rank, which must receive the same number of bytes.
struct SendArgs {
  const char* name = "";
  int to = 0;                  ///< its number in the group
  const void* from = nullptr;  ///< [bytes] device memory
  std::int64_t bytes = 0;
};

/// Bytes from one other rank, which must send the same number of bytes.
struct ReceiveArgs {
  const char* name = "";
  int from = 0;        ///< its number in the group
  void* to = nullptr;  ///< [bytes] device memory
  std::int64_t bytes = 0;
};

/// Values that are summed over the ranks on a stream of the caller.
struct DirectSumArgs {
  const void* values = nullptr;  ///< [count] device memory
  const void* addend = nullptr;  ///< [count], does not overlap `to`: added to the rounded sum; null: none
  void* to = nullptr;            ///< [count]; may be `values`
  DType dtype = DType::f32;      ///< f32 or bf16
  std::int64_t count = 0;
};

/// Device memory that all ranks allocate alike: equal sizes, order and purpose.
struct SharedMemory {
  void* address = nullptr;
  std::size_t bytes = 0;
};

/// The collectives of one group of ranks. Ranks, slices and sizes are counted within the group. All ranks of
/// the group call the same collectives on the same queue in the same order. Only the two ranks of a
/// point-to-point message call it.
class Collectives {
 public:
  virtual ~Collectives() = default;
  /// Returns the place of this rank in the group.
  virtual const Place& place() const = 0;
  int rank() const { return place().rank; }
  int size() const { return place().size; }
  /// Returns the blocking host-side channel of the group, for the threads that enqueue. If some ranks use it
  /// between the enqueueing and the completion of a collective, all ranks must use it there.
  virtual Channel& channel() = 0;

  /// Streams on which collectives may be enqueued. A collective is complete when later work of its stream
  /// runs.
  virtual Stream& gather_stream() = 0;
  virtual Stream& reduce_stream() = 0;

  /// Sums in rank order in fp32: ((r0 + r1) + r2) + …. `args` can select sums by node or a given order. NCCL
  /// uses its own order if Carrying selects it.
  virtual void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) = 0;
  virtual void all_gather(Stream& stream, const AllGatherArgs& args) = 0;
  virtual void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) = 0;
  virtual void all_to_all(Stream& stream, const AllToAllArgs& args) = 0;
  /// values[i] = max over ranks; NaN wins. Device memory, in place.
  virtual void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) = 0;
  /// values[i] = sum over ranks. Integers are added in any order, doubles in rank order. Device memory, in
  /// place.
  virtual void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) = 0;
  virtual void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) = 0;
  /// Does both sums, in shared messages on CPUs.
  virtual void all_reduce_sums(Stream& stream, const char* name, std::int64_t* integers,
                               std::int64_t integer_count, double* doubles, std::int64_t double_count) {
    all_reduce_sum(stream, name, integers, integer_count);
    all_reduce_sum(stream, name, doubles, double_count);
  }

  /// Returns whether sum_directly() accepts `count` values. It accepts few values, and only if each rank has
  /// its own GPU of one host and the GPUs write into each other's memory. The result is equal on all ranks.
  /// The values must fill whole words of 8 bytes. If a count is accepted, every smaller count of whole words
  /// is too.
  virtual bool sums_directly(std::int64_t /*count*/, DType /*dtype*/) const { return false; }
  /// Enqueues on one stream of the caller, always the same. The values become their sum over the ranks, in
  /// rank order, in fp32, rounded once (ops::peer_sum). The call belongs to no queue. It may be recorded and
  /// replayed (device.h) if all ranks do so alike. The communication thread does not watch it, and Traffic
  /// and seconds_busy() exclude it.
  virtual void sum_directly(Stream& stream, const DirectSumArgs& args);

  /// Messages between two ranks. A send may block its stream until the receiver has the bytes. If two ranks
  /// both send to each other first on one queue, they deadlock. send_receive() does both concurrently, with
  /// one peer or two. Messages from one rank to another on a queue are received in the order of sending.
  void send(Stream& stream, const SendArgs& args) { pass(stream, &args, nullptr); }
  void receive(Stream& stream, const ReceiveArgs& args) { pass(stream, nullptr, &args); }
  void send_receive(Stream& stream, const SendArgs& out, const ReceiveArgs& in) { pass(stream, &out, &in); }

  /// Registers memory that gathers will write to. Carriers that write into peer memory then need no staging.
  /// All ranks call it, between steps. Optional: gathers to other memory give the same result.
  virtual void share(const std::vector<SharedMemory>& memory) = 0;
  /// Undoes share(). The caller must first wait for all enqueued work, and may free the memory only
  /// afterwards. All ranks call it.
  virtual void unshare(const std::vector<SharedMemory>& memory) = 0;

  /// Switches the timing of collectives on or off; initially on. If it is off, Traffic::seconds and
  /// seconds_busy() exclude collectives that are enqueued. On GPUs the two timing events add about 7
  /// microseconds to a small collective. No effect on CPUs, where timing is free.
  virtual void take_times(bool on) = 0;
  /// Returns the counters since the last call and resets them.
  virtual std::vector<Traffic> take_traffic() = 0;
  /// Returns the seconds since construction during which a collective of a stream was under way. A collective
  /// begins when the earlier work of that stream is done, and ends when it is complete. Concurrent
  /// collectives count once. Waiting for slower ranks counts.
  virtual double seconds_busy() = 0;

  /// Describes the carrier: "peer, 368 GB/s"; empty for a single rank.
  virtual std::string carrier() const = 0;

 private:
  /// Sends, receives or does both. `out` or `in` may be null, but not both.
  virtual void pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) = 0;
};

/// Returns the bytes of staging memory that the collectives of `size` ranks reserve on their device: on a CPU
/// about 19 MB up to 42 ranks and 320 to 440 KB per rank for more, on a GPU up to 208 MiB, none for one rank.
/// For memory plans before a job exists.
std::size_t staging_bytes(int size, DeviceKind kind);

/// Returns false if overlapping collectives with compute saves no time. That is the case on CPUs if ranks
/// share a node and each rank computes on a single core, and no core is free. Messages then take core time
/// from compute, and thread switches add to it. True for devices that are not CPUs, and always if the
/// environment sets OCTETRUN_OVERLAP=always (tests: the bits must not depend on it). `place` is the place in
/// the job.
bool overlap_hides(const Device& device, const Place& place);

/// A message that arrived corrupted. Ranks are numbers in the group.
struct BrokenMessage {
  int from = 0;
  int to = 0;
  std::string name;  ///< of the collective
};

/// Collectives with messages that can be sealed: each message is sent with a hash of its bytes, which the
/// receiver verifies. Collectives between CPU ranks can be sealed. A single rank sends no messages.
class Seals {
 public:
  virtual ~Seals() = default;
  /// Switches sealing of later collectives on or off. All ranks call it, between the same collectives.
  virtual void seal(bool on) = 0;
  /// Returns the corrupted messages of completed collectives that this rank received since the last call.
  virtual std::vector<BrokenMessage> take_broken() = 0;
  /// For tests: inverts one bit of one of the next messages that this rank receives. `draw` selects both.
  virtual void spoil(std::uint64_t draw) = 0;
};

/// Returns null if these collectives cannot be sealed.
Seals* seals_of(Collectives& collectives);

}  // namespace octet::comm
