#pragma once

#include "octet/model/layout.h"
#include "octet/zero/options.h"

namespace octet::zero {

/// Bytes that a rank sends to all others in a step. What is small is left out: norm, losses, amaxes.
struct StepMessages {
  std::int64_t reduced = 0;   ///< gradients, to the owners of their sums
  std::int64_t gathered = 0;  ///< parameters; at stage 0 sums of gradients
  std::int64_t bytes() const { return reduced + gathered; }
};

/// For plans: of a step of that many micro-batches on each rank, counted as if all ranks shared a node. What
/// goes by nodes takes other ways.
StepMessages step_messages(const model::ParameterLayout& layout, const Options& options,
                           const comm::Place& place, int micro_batches);

}  // namespace octet::zero
