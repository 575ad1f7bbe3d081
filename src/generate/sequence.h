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
  /// Tokens whose keys and values are in the cache, or will be when the passes on their way are over: one
  /// more than are known where the newest of these takes a token that the one in front of it makes.
  std::size_t cached = 0;
  std::size_t lost = 0;   ///< as many were, at most, before it was put back into the queue
  int in_flight = 0;      ///< passes on their way that make a token of it
  std::int32_t row = -1;  ///< in the newest of these
  bool waits = false;     ///< for the beginning of its prompt, which another sequence is computing
  bool ended = false;     ///< its answer is whole, but a pass on its way still computes a token behind it
  HeldPages held;

  /// Whether all but its newest token are cached, and that is one of its answer.
  bool decodes() const { return !answer.ids.empty() && cached + 1 == tokens.size(); }
  /// Tokens that are known and cached.
  std::size_t known() const { return std::min(cached, tokens.size()); }
  /// Whether its next pass can take the token that the one on its way makes, which is not known yet: whether
  /// the answer goes on behind it as far as its length is concerned.
  bool can_be_followed(std::size_t capacity) const {
    return in_flight == 1 && !ended && cached == tokens.size() && tokens.size() + 1 < longest(capacity);
  }
  /// Tokens of prompt and answer at most.
  std::size_t longest(std::size_t capacity) const {
    return std::min(capacity, asked.prompt.size() + static_cast<std::size_t>(options.max_new));
  }
};

}  // namespace octet::generate
