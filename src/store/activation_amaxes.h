#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "octet/store/options.h"

namespace octet::store {

/// With delayed scaling: the amaxes of activations and output gradients on their way over the ranks, beside
/// compute. Those of the forward pass leave when its last block is enqueued and are needed when the
/// micro-batch ends, because recomputation and the products of backward read the old scales until then. Those
/// of gradients leave when the micro-batch ends and are needed when the next backward pass begins. So compute
/// waits for no other rank's host. All ranks make the same calls, so that the collectives of the gather queue
/// match.
class ActivationAmaxes {
 public:
  ActivationAmaxes(comm::Collectives& collectives, Device& device, const Options& options);

  /// A micro-batch begins. Null: there are no scales.
  void begin(precision::ScaleSet* scales);
  /// Before the head is acquired, inside a micro-batch.
  void blocks_done(Stream& compute);
  /// All of the micro-batch is enqueued.
  void end(Stream& compute);

 private:
  /// The amaxes raised on `compute` so far, reduced by MAX over the ranks on the gather queue.
  void reduce(int part, const char* name, Stream& compute);

  comm::Collectives& collectives_;
  bool delayed_;
  bool overlap_;
  precision::ScaleSet* scales_ = nullptr;
  bool left_ = true;  ///< those of the forward pass of this micro-batch
  std::unique_ptr<Event> raised_, forward_reduced_, gradients_updated_;
};

}  // namespace octet::store
