// Collectives of ranks on GPUs: exchanges and kernels on streams. Ranks that are threads use it too, on CPU
// devices, so that everything except the GPU calls is tested everywhere.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/carriers.h"
#include "gpu/composed.h"
#include "job/injected_faults.h"
#include "job/rank_group.h"
#include "meter.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"

namespace octet::comm {

// Times of collectives on streams, from timed events around each of them, read after they are reached.

/// Used by the enqueuing thread.
class Stopwatch {
 public:
  explicit Stopwatch(Device& device) : device_(device) {}

  /// Mark the begin or end of a collective at the current point of `stream`. One collective per queue at a
  /// time.
  void begin(Stream& stream, Queue queue, Kind kind);
  void end(Stream& stream, Queue queue);

  /// Collects collectives that have ended. Adds the time of each kind to `meter`. Returns the seconds during
  /// which at least one was under way.
  double collect(Meter& meter);
  /// Returns the number of collectives that have not been collected yet.
  std::size_t open() const { return laps_.size(); }

 private:
  struct Lap {
    Kind kind{};
    Queue queue{};
    std::unique_ptr<Event> begin, end;
  };
  std::unique_ptr<Event> event();

  Device& device_;
  std::deque<Lap> laps_;                       ///< in the order in which they were enqueued
  std::vector<std::unique_ptr<Event>> spare_;  ///< events to be used again
};

class DeviceCollectives final : public Collectives {
 public:
  /// Collective over the job. `device` is a CPU device for ranks that are threads, otherwise a GPU.
  DeviceCollectives(Device& device, RankJob& job, const Group& group, const Carrying& carrying);
  ~DeviceCollectives() override;

  const Place& place() const override { return group_.place(); }
  Stream& gather_stream() override { return *gather_.stream; }
  Stream& reduce_stream() override { return *reduce_.stream; }
  void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) override;
  void all_gather(Stream& stream, const AllGatherArgs& args) override;
  void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) override;
  void all_to_all(Stream& stream, const AllToAllArgs& args) override;
  void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) override;
  void share(const std::vector<SharedMemory>& memory) override;
  void unshare(const std::vector<SharedMemory>& memory) override;
  bool sums_directly(std::int64_t count, DType dtype) const override {
    return carriers_->sums_directly(count, dtype);
  }
  void sum_directly(Stream& stream, const DirectSumArgs& args) override;
  Channel& channel() override { return group_.channel(); }
  void take_times(bool on) override { takes_times_ = on; }
  std::vector<Traffic> take_traffic() override;
  double seconds_busy() override;
  std::string carrier() const override { return carriers_->words(); }

 private:
  void pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) override;
  /// In pinned memory: the last collective of a queue that has begun on its stream, and the last that is
  /// done. A small collective counts as done when all bytes have arrived, although its results may not be
  /// complete.
  struct Progress {
    std::uint32_t begun;
    std::uint32_t done;
  };
  /// One queue.
  struct Lane {
    Queue queue{};
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Stream> watched;  ///< host stream that the communication thread follows
    Way carrier;
    std::unique_ptr<Composed> collectives;
    Progress* progress = nullptr;
    std::uint32_t number = 0;
  };
  bool finished();
  Lane& lane_of(const Stream& stream);
  void make_lane(Lane& lane, Queue queue, const DeviceStaging& staging);
  template <typename Enqueue>
  void run(Lane& lane, const std::shared_ptr<Timed>& timed, Enqueue&& enqueue);

  Device& device_;
  RankGroup group_;
  std::unique_ptr<Device> host_;  ///< owns the streams that the communication thread follows
  Arena arena_;
  Hierarchy flat_;
  Hierarchy hierarchy_;
  std::byte* memory_ = nullptr;  ///< layout: device_staging.h
  std::unique_ptr<Carriers> carriers_;
  Progress* progress_ = nullptr;
  Stopwatch stopwatch_;
  Delays delays_;
  BrokenStep broken_;
  double seconds_busy_ = 0;
  Lane gather_, reduce_;
  int exceptions_at_start_;
  bool takes_times_ = true;
  bool removing_ = false;  ///< RankOptions::removed, and training has begun
};

}  // namespace octet::comm
