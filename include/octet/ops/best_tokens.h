#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// The most probable token of a row of logits.
struct BestToken {
  double normalizer = 0;  ///< log of the sum of exponentials of the row, in double; 0 if not wanted
  float logit = 0;        ///< the largest; a NaN counts as the largest
  std::int32_t id = 0;    ///< index of `logit`; the lowest index of equal ones
};

/// out[r] = the most probable token of row r.
struct BestTokensArgs {
  ConstMatrix logits;        ///< [rows, vocabulary] f32, at least one column
  bool normalizers = false;  ///< whether normalizers are wanted
  BestToken* out = nullptr;  ///< [rows]
};
void best_tokens(Stream& stream, const BestTokensArgs& args);

/// If ids[i] is below 0, ids[i] = best[-1 - ids[i]].id. A negative id refers to a row, because the host does
/// not have the id yet.
struct FillIdsArgs {
  const BestToken* best = nullptr;  ///< at least one more than the largest row that an id refers to
  std::int32_t* ids = nullptr;      ///< [count], in place
  std::int64_t count = 0;
};
void fill_ids(Stream& stream, const FillIdsArgs& args);

}  // namespace octet::ops
