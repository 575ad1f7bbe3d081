// What the ranks that hold a model together do alike in one pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paged_cache.h"
#include "sequences.h"

namespace octet::generate {

/// What a row is listed for (ops::listed_logits).
struct WantedOfRow {
  double temperature = 0;  ///< of the sum over the row; 0: it is not wanted
  double draw = -1;        ///< by which a token of the whole row is drawn; below 0: none is
};

/// What a pass wants of its logits.
struct Wanted {
  bool best = false;         ///< the most probable tokens, where the logits lie
  bool normalizers = false;  ///< with what log-probabilities of these and of listed rows need
  /// [rows], or empty where no row is listed: the rows whose largest logits come to the host. Of a rank with
  /// the whole vocabulary alone.
  std::vector<std::optional<WantedOfRow>> listed;
  std::vector<bool> logits;  ///< [rows] those that come to the host whole

  /// Whether the device alone knows the next token of each row: its most probable one.
  bool best_alone() const { return listed.empty() && std::ranges::find(logits, true) == logits.end(); }
};

/// Copies and changes come before the tokens.
struct PassPlan {
  std::vector<PageCopy> copies;
  std::vector<PageChange> changes;
  PassTokens tokens;
  Wanted wanted;
  std::string told;  ///< packed(), for those who have not heard of it yet
};

/// As bytes, but for whose rows they are and what is listed of them: who is told has no whole rows.
std::string packed(const PassPlan& plan);
/// Throws Error for bytes that packed() has not made.
PassPlan unpacked(const std::string& bytes);

}  // namespace octet::generate
