#pragma once

#include "octet/comm/collectives.h"
#include "octet/model/layout.h"
#include "octet/store/placement.h"

namespace octet::store {

/// Bytes that a rank sends to the other ranks in a step. The small messages are not counted: norm, losses,
/// amaxes.
struct StepMessages {
  comm::Sent reduced;    ///< gradients, to the ranks that own their sums
  comm::Sent gathered;   ///< parameters; at stage 0 gradient sums
  comm::Sent exchanged;  ///< rows for experts of other ranks; step_messages() leaves it empty
  std::int64_t bytes() const { return reduced.bytes + gathered.bytes + exchanged.bytes; }
  std::int64_t between_nodes() const {
    return reduced.between_nodes + gathered.between_nodes + exchanged.between_nodes;
  }

  /// The same bytes, by the computation that overlaps with their transfer. `sums` overlap with `sum_passes`
  /// backward passes of the step. `backward` overlaps with all backward passes, `forward` with
  /// `forward_passes` forward passes. Nothing overlaps with `alone`: the sums of the last group of backward,
  /// the first group of forward, and all bytes without overlap.
  struct Beside {
    comm::Sent sums, backward, forward, alone;
    int sum_passes = 1, forward_passes = 1;
  } beside;
};

/// Returns the messages of a step with `micro_batches` micro-batches on each rank, for plans.
/// `same_experts`: the place among the ranks with the same experts, for segments with
/// SegmentSpec::split_experts.
StepMessages step_messages(const model::ParameterLayout& layout, const Options& options,
                           const comm::Place& place, int micro_batches, const comm::Place& same_experts = {});

}  // namespace octet::store
