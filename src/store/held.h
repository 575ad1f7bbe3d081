// The memory of a store that must not change between two updates.
#pragma once

#include <vector>

#include "fixed.h"
#include "octet/store/hashes.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

/// Memory of a rank that its device can read.
struct Piece {
  void* data = nullptr;
  std::int64_t bytes = 0;
  Held kind{};
  bool replica = false;  ///< equal on all ranks
};

/// Returns all state that this rank holds, in the same order on every rank. `keeps_transposed`: transposed
/// copies are made with the weights, not at use.
std::vector<Piece> held(Segments& segments, Updater& updater, const Fixed& fixed, bool keeps_transposed);

}  // namespace octet::store
