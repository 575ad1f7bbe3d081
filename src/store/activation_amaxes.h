// Delayed scaling: the reduction of amaxes over the ranks.
#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/precision/scaling.h"
#include "octet/store/placement.h"

namespace octet::store {

/// Reduces the amaxes of activations and output gradients over the ranks, for delayed scaling, overlapped
/// with compute.
///
/// The reduction of forward amaxes starts when the last block is enqueued. Its result is needed when the
/// micro-batch ends, because recomputation and the backward GEMMs read the old scales until then. The
/// reduction of gradient amaxes starts when the micro-batch ends. Its result is needed when the next backward
/// pass begins. So compute does not wait for the host of another rank. All ranks must make the same calls, so
/// that the collectives of the gather queue match.
class ActivationAmaxes {
 public:
  ActivationAmaxes(comm::Collectives& collectives, Device& device, const Options& options);

  /// Begins a micro-batch. Null: there are no scales.
  void begin(precision::ScaleSet* scales);
  /// Called inside a micro-batch, before the head is acquired.
  void blocks_done(Stream& compute);
  /// Called when the whole micro-batch is enqueued.
  void end(Stream& compute);

 private:
  /// Reduces the amaxes raised on `compute` so far by MAX over the ranks, on the gather queue.
  void reduce(int part, const char* name, Stream& compute);

  comm::Collectives& collectives_;
  bool delayed_;
  bool overlap_;
  precision::ScaleSet* scales_ = nullptr;
  bool left_ = true;  ///< blocks_done() was called in this micro-batch
  std::unique_ptr<Event> raised_, forward_reduced_, gradients_updated_;
};

}  // namespace octet::store
