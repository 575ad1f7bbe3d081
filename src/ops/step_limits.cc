#include "octet/ops/step_limits.h"

#include "checks_kernels.h"
#include "dispatch.h"

namespace octet::ops {

void limit_step(Stream& stream, const LimitStepArgs& args) {
  check(args.scalars && args.losses >= 0 && (args.losses == 0 || args.loss_sums),
        "limit_step: loss_sums and scalars are needed");
  OCTET_DISPATCH(stream, limit_step, args);
}

}  // namespace octet::ops
