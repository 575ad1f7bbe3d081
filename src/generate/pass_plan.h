// The plan of one pass, which all ranks that hold a model together execute.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paged_cache.h"
#include "sequences.h"

namespace octet::generate {

/// The purpose of a row's listing (ops::listed_logits).
struct WantedOfRow {
  double temperature = 0;  ///< of the sum over the row; 0: no sum
  double draw = -1;        ///< the number that selects a token of the whole row; below 0: none
};

/// The results that a pass needs from its logits.
struct Wanted {
  bool best = false;  ///< the most probable tokens, found on the device
  bool normalizers =
      false;  ///< also the normalizers for log-probabilities of these tokens and of listed rows
  /// [rows], or empty if no row is listed: the rows with their largest logits copied to the host. Only on a
  /// rank with the whole vocabulary.
  std::vector<std::optional<WantedOfRow>> listed;
  std::vector<bool> logits;  ///< [rows] true: the whole row is copied to the host

  /// Whether the most probable token of each row is the only result, so that it can stay on the device.
  bool best_alone() const { return listed.empty() && std::ranges::find(logits, true) == logits.end(); }
};

/// One pass. Copies and changes precede the tokens.
struct PassPlan {
  std::vector<PageCopy> copies;
  std::vector<PageChange> changes;
  PassTokens tokens;
  Wanted wanted;
  std::string told;  ///< packed(), to send to ranks that do not have the plan
};

/// Serializes a plan without the sequences and the listings of its rows, which only the leader uses.
std::string packed(const PassPlan& plan);
/// Throws Error if `bytes` is not from packed().
PassPlan unpacked(const std::string& bytes);

}  // namespace octet::generate
