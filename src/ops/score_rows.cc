#include "octet/ops/score_rows.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void score_rows(Stream& stream, const ScoreRowsArgs& args) {
  check(is_matrix(args.scores) && args.scores.cols == 1, "score_rows: scores must be [rows, 1] T");
  OCTET_DISPATCH(stream, score_rows, args);
}

}  // namespace octet::ops
