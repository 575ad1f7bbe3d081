#include "octet/ops/preference.h"

#include "kernels.h"
#include "preference_rule.h"

namespace octet::ops::cpu {

void answer_sums(const AnswerSumsArgs& a) {
  for (std::int64_t answer = 0; answer < a.count; ++answer) {
    const std::int64_t begin = a.answers[answer], end = a.answers[answer + 1];
    const std::int64_t shared = a.pairs ? begin + common_rows(a.answers, answer) : end;
    double front = 0, rear = 0;
    for (std::int64_t r = begin; r < end; ++r)
      (r < shared ? front : rear) += static_cast<double>(a.row_loss[r]);
    a.out[answer] = -(front + a.beyond * rear);
  }
}

void preference_loss(const PreferenceLossArgs& a) {
  double shifts[2];
  make_shifts(a, shifts);
  for (std::int64_t p = 0; p < a.pairs; ++p) add_pair(a, p, shifts);
  if (a.row_factors == nullptr) return;
  for (std::int64_t answer = 0; answer < 2 * a.pairs; ++answer) {
    const std::int64_t shared = a.answers[answer] + common_rows(a.answers, answer);
    for (std::int64_t r = a.answers[answer]; r < a.answers[answer + 1]; ++r)
      a.row_factors[r] = static_cast<float>(a.slopes[answer] * (r < shared ? 1.0 : a.rule.beyond));
  }
}

}  // namespace octet::ops::cpu
