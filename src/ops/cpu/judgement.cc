#include "octet/ops/judgement.h"

#include "judgement_rule.h"
#include "kernels.h"

namespace octet::ops::cpu {

void judgement_loss(const JudgementLossArgs& a) {
  const double supervised = supervised_factor(a, desirable_answers(a));
  for (std::int64_t i = 0; i < a.count; ++i) add_answer(a, i, supervised);
  if (a.row_factors == nullptr) return;
  for (std::int64_t i = 0; i < a.count; ++i)
    for (std::int64_t r = a.answers[i]; r < a.answers[i + 1]; ++r)
      a.row_factors[r] = static_cast<float>(a.slopes[i]);
}

}  // namespace octet::ops::cpu
