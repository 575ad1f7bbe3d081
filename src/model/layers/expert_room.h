#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "octet/model/transformer.h"

namespace octet::model {

/// The rows that the experts of a rank compute in a micro-batch.
struct ExpertRoom {
  std::int64_t taken = 1;    ///< experts per token
  std::int64_t experts = 1;  ///< of this rank
  std::int64_t sources = 1;  ///< ranks that send their tokens to these experts

  /// Parts of the rows may begin at multiples of this number. FP8 kernels read that many rows.
  static constexpr std::int64_t kPartRows = 16;

  /// Returns the number of rows if all tokens of all sources take as many of these experts as they can.
  std::int64_t worst(const TransformerOptions& options) const {
    return sources * std::min(taken, experts) * options.max_tokens;
  }
  /// Returns the number of rows that a micro-batch may have (TransformerOptions::exchange_room).
  std::int64_t limit(const TransformerOptions& options) const {
    if (sources == 1 || options.exchange_room == 0) return worst(options);
    const double even = static_cast<double>(options.max_tokens * taken);
    return std::min(worst(options), static_cast<std::int64_t>(std::ceil(options.exchange_room * even)));
  }
  /// Returns the rows of buffers: limit(), with room for a part of each source.
  std::int64_t rows(const TransformerOptions& options) const {
    return std::min(worst(options), limit(options) + sources * kPartRows);
  }
};

}  // namespace octet::model
