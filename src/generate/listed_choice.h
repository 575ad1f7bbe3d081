// Chooses a token from the largest logits of a row. Results equal choose() and LogProbabilities of the whole
// row, as long as the logits that are not listed cannot matter.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "octet/generate/sampling.h"
#include "octet/ops/listed_logits.h"

namespace octet::generate {

/// A row of logits from ops::listed_logits. The list is not copied and must outlive this object.
struct ListedRow {
  ops::RowOfLogits row;
  std::span<const ops::ListedLogit> listed;  ///< [row.count]
  std::int64_t vocabulary = 0;
};

/// The purpose of a listing.
struct ListingWish {
  bool helps = false;      ///< whether a listing can suffice
  double temperature = 0;  ///< of the sum over the row; 0: no sum
  double draw = -1;        ///< the number that selects a token of the whole row; -1: none
};
/// Returns the listing that a choice with these settings needs. `forbids`: whether ids are forbidden. `most`:
/// most logits that can be listed per row.
ListingWish listing_wish(const Sampling& sampling, const Draw& draw, bool forbids, std::int64_t vocabulary,
                         std::int64_t most);

/// Equal candidates() and choose() of the whole row, if the logits of `forbidden` ids are -inf. Return
/// nullopt if the whole row is needed, which includes rows with a largest logit that is not finite. If the
/// row has a sum or a draw, it was made with the temperature of `sampling` and with `draw`.
std::optional<std::vector<Candidate>> candidates(const ListedRow& row, const Sampling& sampling,
                                                 std::span<const std::int32_t> seen = {},
                                                 std::span<const std::int32_t> forbidden = {});
std::optional<std::int32_t> choose(const ListedRow& row, const Sampling& sampling, const Draw& draw,
                                   std::span<const std::int32_t> seen = {},
                                   std::span<const std::int32_t> forbidden = {});

/// Equal LogProbabilities::of() and best(), for a row with its normalizer. Return nullopt if the whole row is
/// needed.
std::optional<double> log_probability(const ListedRow& row, std::int32_t id);
std::optional<std::vector<TokenScore>> most_probable_tokens(const ListedRow& row, std::int64_t count);

}  // namespace octet::generate
