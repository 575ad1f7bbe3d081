#include "octet/ops/score_rows.h"

#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {

void score_rows(const ScoreRowsArgs& a) {
  with_type(a.scores.dtype, [&](auto type) {
    for (std::int64_t r = 0; r < a.scores.rows; ++r) {
      auto* const score = row_of<decltype(type)>(a.scores, r);
      float value = 0;
      load(score, &value, 1);
      if (a.row_loss != nullptr) a.row_loss[r] = -value;
      if (a.row_factors == nullptr) continue;
      value = -a.row_factors[r];
      store(&value, score, 1);
    }
  });
}

}  // namespace octet::ops::cpu
