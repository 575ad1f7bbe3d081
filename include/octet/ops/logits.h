// Reads rows of logits: the most probable token, and lists of the largest logits.
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

/// A logit and its token.
struct ListedLogit {
  float logit = 0;
  std::int32_t id = 0;
};

/// Facts about a row of logits, in addition to its listed logits.
struct RowOfLogits {
  double normalizer = 0;    ///< log of the sum of exponentials of the row, in double; 0 if not wanted
  double sum = 0;           ///< Σ exp(x / temperature - highest / temperature), in double; 0 if not wanted
  float highest = 0;        ///< the largest logit; a NaN counts as the largest
  float bound = 0;          ///< the largest logit that is not listed; -inf if all are listed
  std::int32_t best = 0;    ///< index of the largest logit; the lowest index of equal ones
  std::int32_t count = 0;   ///< number of listed logits
  std::int32_t drawn = -1;  ///< the token that is drawn from the whole row; -1 if not wanted
  float drawn_logit = 0;    ///< logit of `drawn`; 0 if not wanted
};

/// Lists the largest logits of each row. Logits are grouped by their distance from the largest logit, in
/// steps of 1/32. The 2048th step holds all larger distances. Whole steps are listed, from the first step on,
/// as many as fit. If the first step does not fit, nothing is listed. So each listed logit is above each
/// unlisted logit, and equal logits are either all listed or all unlisted. -inf is never listed. If the
/// largest logit of a row is not finite, nothing is listed, summed or drawn, and `bound` is that logit.
///
/// Sums are in double. A CPU sums in the order of the vocabulary. The order on a GPU depends only on the size
/// of the vocabulary. `normalizer` has the same bits as from best_tokens.
///
/// Probabilities are computed from logits / temperature. A draw takes the first token, in the order of the
/// vocabulary, at which draw - (sum of probabilities up to this token) is below 0. If rounding leaves no such
/// token, it takes the most probable token.
struct ListedLogitsArgs {
  ConstMatrix logits;        ///< [rows], device: temperature for `sum`; 0 or less: `sum` is not wanted
  bool normalizers = false;  ///< whether normalizers are wanted
  const double* temperatures = nullptr;  ///< [rows], device: of `sum`; 0 or less: it is not wanted
  const double* draws = nullptr;  ///< [rows], device: in [0, 1); below 0: no draw is wanted. Only with `sum`
  std::int64_t most = 0;          ///< capacity of the list of a row, 1 or more
  RowOfLogits* rows = nullptr;    ///< [rows]
  ListedLogit* listed = nullptr;  ///< [rows, most], by ascending id; entries from `count` on are unchanged
};
void listed_logits(Stream& stream, const ListedLogitsArgs& args);

}  // namespace octet::ops
