#pragma once

#include <limits>

#include "octet/ops/optimizer.h"

namespace octet::ops {

/// Limits of the loss and the gradient norm of a step. The update of a step above a limit is skipped.
/// Infinity: any finite value is accepted.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       ///< mean over the label tokens
  double grad_norm = std::numeric_limits<double>::infinity();  ///< before clipping
  bool any() const {
    return loss < std::numeric_limits<double>::infinity() ||
           grad_norm < std::numeric_limits<double>::infinity();
  }
};

/// Runs after finish_norm. If the mean loss or the norm is above its limit, sets `skip` to 1 and grad_scale
/// to 0. The sums of losses are added in order, like on the host, so that both get the same bits.
struct LimitStepArgs {
  StepLimits limits;
  const double* loss_sums = nullptr;  ///< device, [losses]
  std::int64_t losses = 0;
  StepScalars* scalars = nullptr;  ///< device
};
void limit_step(Stream& stream, const LimitStepArgs& args);

}  // namespace octet::ops
