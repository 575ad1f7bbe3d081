// A request while it is being answered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// What a sequence holds of the cache.
struct HeldPages {
  std::vector<std::vector<std::int32_t>> pages;  ///< of each group, by their place in the sequence
  std::vector<std::size_t> first;                ///< of each group the first that is held: what lies behind a
                                                 ///< window was given back
  std::vector<std::int32_t> path;                ///< nodes of the prefix tree: one for each page that is full

  std::size_t count() const { return pages.empty() ? 0 : pages.front().size(); }
};

struct Sequence {
  std::size_t request = 0;
  Request asked;
  AnswerOptions options;
  Answer answer;
  std::vector<std::int32_t> tokens;  ///< prompt, then answer
  std::int32_t slot = -1;            ///< its page tables
  std::size_t cached = 0;            ///< tokens whose keys and values are in the cache
  std::size_t lost = 0;              ///< as many were, at most, before it was put back into the queue
  bool in_flight = false;  ///< all its tokens are taken, and what a pass makes of them was not seen yet
  bool waits = false;      ///< for the beginning of its prompt, which another sequence is computing
  HeldPages held;

  /// Whether all but its newest token are cached, and that is one of its answer.
  bool decodes() const { return !answer.ids.empty() && cached + 1 == tokens.size(); }
  /// Tokens of prompt and answer at most.
  std::size_t longest(std::size_t capacity) const {
    return std::min(capacity, asked.prompt.size() + static_cast<std::size_t>(options.max_new));
  }
};

}  // namespace octet::generate
