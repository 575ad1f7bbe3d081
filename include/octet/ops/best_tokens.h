#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// What is most probable by a row of logits.
struct BestToken {
  double normalizer = 0;  ///< log of the sum of exponentials of the row, in double; 0 where it is not wanted
  float logit = 0;        ///< the largest; a NaN counts as the largest
  std::int32_t id = 0;    ///< its place, the lowest of several
};

/// out[r] = the most probable token of row r.
struct BestTokensArgs {
  ConstMatrix logits;        ///< [rows, vocabulary] f32, at least one column
  bool normalizers = false;  ///< whether normalizers are wanted
  BestToken* out = nullptr;  ///< [rows]
};
void best_tokens(Stream& stream, const BestTokensArgs& args);

/// ids[i] = best[-1 - ids[i]].id where ids[i] is below 0: an id that the host does not know yet is given as
/// the row that yields it.
struct FillIdsArgs {
  const BestToken* best = nullptr;  ///< at least as many as any id asks for
  std::int32_t* ids = nullptr;      ///< [count], in place
  std::int64_t count = 0;
};
void fill_ids(Stream& stream, const FillIdsArgs& args);

}  // namespace octet::ops
