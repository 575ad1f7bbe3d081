#include "octet/ops/judgement.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void judgement_loss(Stream& stream, const JudgementLossArgs& args) {
  const bool given =
      args.answers && args.desirable && args.sums && args.references && args.point && args.slopes;
  check(args.count >= 0 && (args.count == 0 || given) && args.loss_sum,
        "judgement_loss: answers, judgements, sums, references, point, slopes and loss_sum are needed");
  check(args.rule.beta > 0, "judgement_loss: beta must be above 0");
  OCTET_DISPATCH(stream, judgement_loss, args);
}

}  // namespace octet::ops
