// What of a store's memory must not change between two updates.
#pragma once

#include <vector>

#include "fixed.h"
#include "octet/store/hashes.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

/// Memory that a rank holds and its device reads.
struct Piece {
  void* data = nullptr;
  std::int64_t bytes = 0;
  Held kind{};
  bool replica = false;  ///< all ranks hold the same
};

/// All that this rank holds, in one order on every rank. `keeps_transposed`: transposed copies are made with
/// the weights, not where they are used.
std::vector<Piece> held(Segments& segments, Updater& updater, const Fixed& fixed, bool keeps_transposed);

}  // namespace octet::store
