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
};

/// For plans: of a step of that many micro-batches on each rank.
StepMessages step_messages(const model::ParameterLayout& layout, const Options& options,
                           const comm::Place& place, int micro_batches);

}  // namespace octet::store
