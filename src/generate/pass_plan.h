// What the ranks that hold a model together do alike in one pass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paged_cache.h"
#include "sequences.h"

namespace octet::generate {

/// What a pass wants of its logits.
struct Wanted {
  bool best = false;         ///< the most probable tokens, where the logits lie
  bool normalizers = false;  ///< with what their log-probabilities need
  std::vector<bool> logits;  ///< [rows] those that come to the host
};

/// Copies and changes come before the tokens.
struct PassPlan {
  std::vector<PageCopy> copies;
  std::vector<PageChange> changes;
  PassTokens tokens;
  Wanted wanted;
  std::string told;  ///< packed(), for those who have not heard of it yet
};

/// As bytes, but for whose rows they are.
std::string packed(const PassPlan& plan);
/// Throws Error for bytes that packed() has not made.
PassPlan unpacked(const std::string& bytes);

}  // namespace octet::generate
