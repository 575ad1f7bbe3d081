#include "octet/ops/logits.h"

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

namespace cpu {
void listed_logits(const ListedLogitsArgs& args);
}  // namespace cpu
namespace cuda {
void listed_logits(Stream& stream, const ListedLogitsArgs& args);
}  // namespace cuda

void listed_logits(Stream& stream, const ListedLogitsArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32 && args.logits.cols > 0,
        "listed_logits: logits are [rows, vocabulary] f32");
  check(args.temperatures != nullptr && args.draws != nullptr,
        "listed_logits: every row has a temperature and a draw");
  check(args.most > 0 && args.rows != nullptr && args.listed != nullptr,
        "listed_logits: there is room for the results of each row and for the listed logits");
  OCTET_DISPATCH(stream, listed_logits, args);
}

}  // namespace octet::ops
