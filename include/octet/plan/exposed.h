#pragma once

#include "octet/plan/time.h"

namespace octet::plan {

/// Bytes that a rank sends over a kind of link in a step, by what is computed meanwhile.
struct Sending {
  double sums = 0;                         ///< of gradients, beside backward passes
  double backward = 0;                     ///< parameters, beside all backward passes
  double forward = 0;                      ///< parameters, beside forward passes
  double alone = 0;                        ///< beside nothing
  int sum_passes = 1, forward_passes = 1;  ///< of the step's, beside which sums and parameters travel
};

/// Seconds of a step in which messages are under way and nothing is computed: an estimate. It assumes that
/// every message travels at its link's best rate, beside the passes that it belongs to and no others, in
/// equal parts for each of them, and that a pass takes its least time. A real pass takes longer and hides
/// more; a real link is slower and hides less.
double exposed_seconds(const Sending& sending, const Time& time, std::int64_t micro_batches, const Link& link,
                       int ranks);

}  // namespace octet::plan
