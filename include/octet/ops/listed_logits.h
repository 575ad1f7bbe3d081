#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// A logit and the token that it belongs to.
struct ListedLogit {
  float logit = 0;
  std::int32_t id = 0;
};

/// What a row of logits is, besides those of its logits that are listed.
struct RowOfLogits {
  double normalizer = 0;    ///< log of the sum of exponentials of the row, in double; 0 where not wanted
  double sum = 0;           ///< of exp(x / temperature - highest / temperature) over the row, in double;
                            ///< 0 where not wanted
  float highest = 0;        ///< the largest logit; a NaN counts as the largest
  float bound = 0;          ///< the largest logit that is not listed; -inf where there is none
  std::int32_t best = 0;    ///< place of the largest, the lowest of several
  std::int32_t count = 0;   ///< logits that are listed
  std::int32_t drawn = -1;  ///< the token that is drawn from the whole row; -1: none was wanted
  float drawn_logit = 0;    ///< its logit; 0: none was wanted
};

/// Of each row the largest logits. They are counted by their distance from the largest one, in steps of 1/32
/// up to the 2048th step, which has all that lies further. Listed are whole steps from the first on, as many
/// as there is room for: none where the first has too many. So what is listed is above all that is not, and
/// of logits that are alike all are listed or none. -inf is never listed. Of a row whose largest logit is no
/// finite number nothing is listed, summed or drawn, and `bound` is that logit.
///
/// Sums are in double, on a CPU in the order of the vocabulary, on a GPU in another one that depends on the
/// size of the vocabulary alone. normalizer: the bits of best_tokens.
///
/// A draw takes the first token, in the order of the vocabulary, at which draw - (sum of probabilities up to
/// it) is below 0, the probabilities being those of the logits over the temperature; where roundings leave a
/// little, the most probable one.
struct ListedLogitsArgs {
  ConstMatrix logits;                    ///< [rows, vocabulary] f32, at least one column
  bool normalizers = false;              ///< whether normalizers are wanted
  const double* temperatures = nullptr;  ///< [rows], device: of `sum`; 0 or less: it is not wanted
  const double* draws = nullptr;  ///< [rows], device: in [0, 1); below 0: none is wanted. Only with `sum`
  std::int64_t most = 0;          ///< logits of a row that there is room for, 1 or more
  RowOfLogits* rows = nullptr;    ///< [rows]
  ListedLogit* listed = nullptr;  ///< [rows, most], by ascending id; what is behind `count` stays as it was
};
void listed_logits(Stream& stream, const ListedLogitsArgs& args);

}  // namespace octet::ops
