#include "checks_kernels.h"

namespace octet::ops::cpu {

void limit_step(const LimitStepArgs& a) {
  StepScalars& s = *a.scalars;
  double loss = 0;
  for (std::int64_t i = 0; i < a.losses; ++i) loss += a.loss_sums[i];
  const bool above = loss / s.label_tokens > a.limits.loss || s.grad_norm > a.limits.grad_norm;
  if (s.skip != 0 || !above) return;
  s.skip = 1;
  s.grad_scale = 0.0f;
}

}  // namespace octet::ops::cpu
