#include "octet/ops/preference.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void answer_sums(Stream& stream, const AnswerSumsArgs& args) {
  check(args.count >= 0 && (args.count == 0 || (args.row_loss && args.answers && args.out)),
        "answer_sums: losses of rows, answers and out are needed");
  check(!args.pairs || args.count % 2 == 0, "answer_sums: a pair has two answers");
  OCTET_DISPATCH(stream, answer_sums, args);
}

void preference_loss(Stream& stream, const PreferenceLossArgs& args) {
  check(args.pairs >= 0 && (args.pairs == 0 || (args.answers && args.sums && args.slopes)) && args.loss_sum,
        "preference_loss: answers, sums, slopes and loss_sum are needed");
  check(args.pairs == 0 || args.references || !args.rule.reads_references(),
        "preference_loss: the rule reads references");
  check(args.rule.beta > 0, "preference_loss: beta must be above 0");
  OCTET_DISPATCH(stream, preference_loss, args);
}

}  // namespace octet::ops
