#include "octet/ops/best_tokens.h"

#include "checks.h"
#include "dispatch.h"

namespace octet::ops {

namespace cpu {
void best_tokens(const BestTokensArgs& args);
void fill_ids(const FillIdsArgs& args);
}  // namespace cpu
namespace cuda {
void best_tokens(Stream& stream, const BestTokensArgs& args);
void fill_ids(Stream& stream, const FillIdsArgs& args);
}  // namespace cuda

void best_tokens(Stream& stream, const BestTokensArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32 && args.logits.cols > 0,
        "best_tokens: logits are [rows, vocabulary] f32");
  check(args.out != nullptr, "best_tokens: there is room for a token of each row");
  OCTET_DISPATCH(stream, best_tokens, args);
}

void fill_ids(Stream& stream, const FillIdsArgs& args) {
  if (args.count == 0) return;
  check(args.best != nullptr && args.ids != nullptr, "fill_ids: there are tokens and ids");
  OCTET_DISPATCH(stream, fill_ids, args);
}

}  // namespace octet::ops
