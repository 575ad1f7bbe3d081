#pragma once

#include <limits>

#include "octet/ops/optimizer.h"

namespace octet::ops {

/// What a step may show at most to be used; infinity: anything finite.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       ///< mean over the label tokens
  double grad_norm = std::numeric_limits<double>::infinity();  ///< before clipping
  bool any() const {
    return loss < std::numeric_limits<double>::infinity() ||
           grad_norm < std::numeric_limits<double>::infinity();
  }
};

/// Behind finish_norm: sets `skip`, and grad_scale to 0, where the mean loss or the norm is above its limit.
/// The sums of losses are added up in order, so that the host, which does the same, finds the same bits.
struct LimitStepArgs {
  StepLimits limits;
  const double* loss_sums = nullptr;  ///< device, [losses]
  std::int64_t losses = 0;
  StepScalars* scalars = nullptr;  ///< device
};
void limit_step(Stream& stream, const LimitStepArgs& args);

}  // namespace octet::ops
