// Collectives composed of exchanges and kernels on streams, equal for every carrier. Values are encoded,
// bytes are exchanged, and the received values are summed in fp32 and in rank order. No bit of a result
// depends on the carrier. Messages between CPU ranks are summed by the same ops in the same order, so no bit
// depends on the device either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "gpu/chunk_pipeline.h"
#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "gpu/reduce_scatters.h"
#include "messages/hierarchy.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// The collectives of one queue: kernels and exchanges on the stream of the queue. Not thread-safe.
class Composed {
 public:
  /// All arguments must outlive this object. `stream` is the stream of the queue.
  Composed(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access, const Place& place,
           const Hierarchy& flat, const Hierarchy& hierarchy, const DeviceStaging& staging);
  Composed(const Composed&) = delete;
  Composed& operator=(const Composed&) = delete;

  /// Lets `summing` sum unconverted fp32 values, and bf16 values if `bf16`, in its own order. Sums by node
  /// and sums in a given order do not change. `summing` must outlive this object.
  void let_sum(Exchange& summing, bool bf16) { summing_ = &summing, sums_bf16_ = bf16; }

  /// Called around a collective. The marks report that the queue's stream has reached the collective, and
  /// that the collective is done.
  void begin(const Marks& marks) { pipeline_.begin(marks); }
  void end() { pipeline_.end(); }
  /// See ChunkPipeline::take_sent().
  ChunkPipeline::Sent take_sent() { return pipeline_.take_sent(); }

  void reduce_scatter(const ReduceScatterArgs& args);
  void all_gather(const AllGatherArgs& args);
  void all_gather_values(const AllGatherValuesArgs& args);
  void all_to_all(const AllToAllArgs& args);
  /// Sends a message to another member, receives one, or both; null: none.
  void pass(const SendArgs* out, const ReceiveArgs* in);
  void all_reduce(ops::Combine how, void* values, std::int64_t count);

 private:
  using Chunk = ChunkPipeline::Chunk;
  bool carrier_sums(const ReduceScatterArgs& args) const;
  void reduce_by_carrier(const ReduceScatterArgs& args);
  void gather_eagerly(const AllGatherArgs& args);
  void all_reduce_eagerly(ops::Combine how, void* values, std::int64_t count);
  /// Sends every member's part to all members; part(member) is both source and destination. With several
  /// nodes, it takes two steps.
  void gather_parts(Stream& stream, const Hierarchy& ways, std::size_t bytes,
                    const std::function<std::byte*(int)>& part, bool last = false);
  void gather_through_staging(const AllGatherArgs& args, const Hierarchy& ways);

  Device& device_;
  Stream& stream_;
  Exchange& exchange_;
  Exchange* summing_ = nullptr;
  bool sums_bf16_ = false;
  Place place_;
  const Hierarchy& flat_;
  const Hierarchy& hierarchy_;
  DeviceStaging staging_;
  ChunkPipeline pipeline_;
  FlatReduce flat_reduce_;
};

}  // namespace octet::comm
