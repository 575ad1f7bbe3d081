#pragma once

#include "octet/plan/time.h"

namespace octet::plan {

/// Bytes that a rank sends over one kind of link in a step, by the computation that can hide them.
struct Sending {
  double sums = 0;                         ///< of gradients, during backward passes
  double backward = 0;                     ///< parameters, during all backward passes
  double forward = 0;                      ///< parameters, during forward passes
  double alone = 0;                        ///< during no computation
  int sum_passes = 1, forward_passes = 1;  ///< passes of the step during which sums and parameters travel
};

/// Estimates the seconds of a step in which messages are in flight and nothing is computed. Assumptions:
/// every message travels at the best rate of its link, only during its own passes and in equal parts, and a
/// pass takes its least time. A real pass takes longer and hides more. A real link is slower and hides less.
double exposed_seconds(const Sending& sending, const Time& time, std::int64_t micro_batches, const Link& link,
                       int ranks);

}  // namespace octet::plan
