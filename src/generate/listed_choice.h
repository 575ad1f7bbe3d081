// The choice of a token from the largest logits of a row: what choose() and LogProbabilities say of the whole
// row, as long as the logits that are not listed cannot matter.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octet/generate/sampling.h"
#include "octet/ops/listed_logits.h"

namespace octet::generate {

/// A row of logits, as ops::listed_logits has made it. What is listed is kept, not copied.
struct ListedRow {
  ops::RowOfLogits row;
  std::span<const ops::ListedLogit> listed;  ///< [row.count]
  std::int64_t vocabulary = 0;
};

/// What a row is listed for.
struct ListingWish {
  bool helps = false;      ///< whether a listing can suffice at all
  double temperature = 0;  ///< of the sum over the row; 0: it is not wanted
  double draw = -1;        ///< the number by which a token of the whole row is drawn; -1: none is
};
/// For a choice by these settings. `forbids`: whether ids are forbidden; `most`: logits of a row that there
/// is room for.
ListingWish listing_wish(const Sampling& sampling, const Draw& draw, bool forbids, std::int64_t vocabulary,
                         std::int64_t most);

/// candidates() and choose() of the whole row with the logits of `forbidden` ids at -inf. None where the row
/// is needed whole: then also where its largest logit is no finite number. The sum of the row is that of
/// `sampling`'s temperature and its draw that of `draw`, where there are any.
std::optional<std::vector<Candidate>> candidates(const ListedRow& row, const Sampling& sampling,
                                                 std::span<const std::int32_t> seen = {},
                                                 std::span<const std::int32_t> forbidden = {});
std::optional<std::int32_t> choose(const ListedRow& row, const Sampling& sampling, const Draw& draw,
                                   std::span<const std::int32_t> seen = {},
                                   std::span<const std::int32_t> forbidden = {});

/// LogProbabilities::of and best, of a row with its normalizer. None where the row is needed whole.
std::optional<double> log_probability(const ListedRow& row, std::int32_t id);
std::optional<std::vector<TokenScore>> most_probable_tokens(const ListedRow& row, std::int64_t count);

}  // namespace octet::generate
