#include "octet/model/share.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::model {
namespace {

// GEMMs are faster with multiples of 16 rows. A vocabulary too small for that is cut evenly.
Piece vocabulary_piece(std::int64_t size, const Share& share) {
  constexpr std::int64_t kUnit = 16;
  const std::int64_t ranks = share.tensor_size;
  std::int64_t each = (size + ranks - 1) / ranks;
  const std::int64_t rounded = (each + kUnit - 1) / kUnit * kUnit;
  if (rounded * (ranks - 1) < size) each = rounded;
  check(each * (ranks - 1) < size, "every rank has a part of the vocabulary");
  const std::int64_t begin = each * share.tensor_rank;
  return {begin, std::min(each, size - begin), size};
}

}  // namespace

Piece piece_of(const SplitRule& rule, std::int64_t size, const Share& share) {
  const std::int64_t ranks = share.tensor_size, rank = share.tensor_rank;
  if (rule.kind == SplitRule::Kind::whole || ranks == 1) return {0, size, size};
  if (rule.kind == SplitRule::Kind::vocabulary) return vocabulary_piece(size, share);
  const std::int64_t units = size / rule.unit;
  check(units * rule.unit == size, "rows that stay together are not cut");
  if (rule.kind == SplitRule::Kind::repeated && units < ranks) {
    check(ranks % units == 0, "every unit is on as many ranks");
    return {rank * units / ranks * rule.unit, rule.unit, size};
  }
  check(units % ranks == 0, "every rank has as many units");
  return {units / ranks * rank * rule.unit, units / ranks * rule.unit, size};
}

}  // namespace octet::model
