#include "octet/ops/step_checks.h"

#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void add_hash(Stream& stream, const HashArgs& args) {
  check(args.bytes >= 0 && (args.bytes == 0 || args.data) && args.to, "add_hash: data and to are needed");
  check(args.at % 8 == 0, "add_hash: bytes begin at a whole word");
  OCTET_DISPATCH(stream, add_hash, args);
}

void limit_step(Stream& stream, const LimitStepArgs& args) {
  check(args.scalars && args.losses >= 0 && (args.losses == 0 || args.loss_sums),
        "limit_step: loss_sums and scalars are needed");
  OCTET_DISPATCH(stream, limit_step, args);
}

}  // namespace octet::ops
