// Reduce-scatters in which every member sends its values directly to their owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "gpu/chunk_pipeline.h"
#include "gpu/device_staging.h"
#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Direct reduce-scatters of one queue. Values are encoded, sent to their owner, and summed there in fp32.
class FlatReduce {
 public:
  /// `stream`, the stream of the queue, and `pipeline` must outlive this object.
  FlatReduce(Stream& stream, const Place& place, const DeviceStaging& staging, ChunkPipeline& pipeline)
      : stream_(stream), rank_(place.rank), size_(place.size), staging_(staging), pipeline_(pipeline) {}

  /// Enqueues a reduce-scatter that sums in rank order. Short messages are sent eagerly.
  void operator()(ReduceScatterArgs args) const;
  /// Enqueues a reduce-scatter of fp32 values that sums in the order of `args.order`.
  void in_order(const ReduceScatterArgs& args) const;

 private:
  using Chunk = ChunkPipeline::Chunk;
  void reduce_eagerly(const ReduceScatterArgs& args) const;
  const std::byte* leaves(const ReduceScatterArgs& args, const Chunk& c, std::size_t addend,
                          int member) const;
  static const std::byte* values_of(const ReduceScatterArgs& args, std::size_t addend, std::int64_t i);
  void encode(const ReduceScatterArgs& args, const Chunk& c) const;
  void sum(const ReduceScatterArgs& args, const Chunk& c,
           const std::function<const std::byte*(int)>& arrived) const;

  Stream& stream_;
  int rank_, size_;
  DeviceStaging staging_;
  ChunkPipeline& pipeline_;
};

}  // namespace octet::comm
