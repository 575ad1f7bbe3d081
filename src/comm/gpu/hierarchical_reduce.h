// Sums with full precision inside a node. Only the sums are sent to other nodes, in the wire format.
#pragma once

#include <functional>

#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "messages/hierarchy.h"
#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Reduce-scatters of one queue between several nodes.
class HierarchicalReduce {
 public:
  /// Enqueues an exchange on the stream of the sums.
  using ExchangeMessages = std::function<void(const PeerMessages&)>;

  /// `stream` and `hierarchy` must outlive this object.
  HierarchicalReduce(Stream& stream, int rank, const Hierarchy& hierarchy, const DeviceStaging& staging)
      : stream_(stream), rank_(rank), hierarchy_(hierarchy), staging_(staging) {}

  /// Enqueues a reduce-scatter. Uses the first set of the staging memory.
  void operator()(const ReduceScatterArgs& args, const ExchangeMessages& exchange) const;

 private:
  Stream& stream_;
  int rank_;
  const Hierarchy& hierarchy_;
  DeviceStaging staging_;
};

}  // namespace octet::comm
