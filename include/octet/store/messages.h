#pragma once

#include "octet/comm/traffic.h"
#include "octet/model/layout.h"
#include "octet/store/options.h"

namespace octet::store {

/// Bytes that a rank sends to all others in a step. What is small is left out: norm, losses, amaxes.
struct StepMessages {
  comm::Sent reduced;   ///< gradients, to the owners of their sums
  comm::Sent gathered;  ///< parameters; at stage 0 sums of gradients
  std::int64_t bytes() const { return reduced.bytes + gathered.bytes; }
  std::int64_t between_nodes() const { return reduced.between_nodes + gathered.between_nodes; }

  /// The same bytes by what is computed beside them. Sums travel beside that many backward passes of the
  /// step, parameters beside all backward passes, and beside that many forward passes. Nothing is computed
  /// beside what is alone: the sums of the group at which backward ends, the group with which forward begins,
  /// and everything without overlap.
  struct Beside {
    comm::Sent sums, backward, forward, alone;
    int sum_passes = 1, forward_passes = 1;
  } beside;
};

/// For plans: of a step of that many micro-batches on each rank.
StepMessages step_messages(const model::ParameterLayout& layout, const Options& options,
                           const comm::Place& place, int micro_batches);

}  // namespace octet::store
