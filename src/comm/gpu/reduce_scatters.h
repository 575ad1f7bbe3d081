// The two ways of a reduce-scatter on streams: every member sends directly to the owner of a value, or nodes
// are summed first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "gpu/chunk_pipeline.h"
#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "messages/hierarchy.h"
#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::comm {

// Reduce-scatters in which every member sends its values directly to their owner.

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

// Sums with full precision inside a node. Only the sums are sent to other nodes, in the wire format.

/// Reduce-scatters of one queue between several nodes.
class HierarchicalReduce {
 public:
  /// `stream` and `hierarchy` must outlive this object.
  HierarchicalReduce(Stream& stream, int rank, const Hierarchy& hierarchy, const DeviceStaging& staging)
      : stream_(stream), rank_(rank), hierarchy_(hierarchy), staging_(staging) {}

  /// Enqueues a reduce-scatter. Uses the first set of the staging memory.
  void operator()(const ReduceScatterArgs& args, ChunkPipeline& pipeline) const;

 private:
  Stream& stream_;
  int rank_;
  const Hierarchy& hierarchy_;
  DeviceStaging staging_;
};

}  // namespace octet::comm
