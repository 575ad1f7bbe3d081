// A request in progress.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// Cache pages of a sequence.
struct HeldPages {
  std::vector<std::vector<std::int32_t>> pages;  ///< per group, by their place in the sequence
  std::vector<std::size_t>
      first;  ///< per group, the first held page; earlier pages were released after the window passed
  std::vector<std::int32_t> path;  ///< nodes of the prefix tree, one per full page

  std::size_t count() const { return pages.empty() ? 0 : pages.front().size(); }
};

struct Sequence {
  std::size_t request = 0;
  Request asked;
  AnswerOptions options;
  Answer answer;
  std::vector<std::int32_t> tokens;  ///< prompt, then answer
  std::int32_t slot = -1;            ///< index of its page tables
  /// Tokens with keys and values in the cache, including passes in flight. It can exceed the known tokens by
  /// one, if the newest pass takes a token that the previous pass computes.
  std::size_t cached = 0;
  std::size_t lost = 0;   ///< most cached tokens before it returned to the queue
  int in_flight = 0;      ///< passes in flight that compute a token of it
  std::int32_t row = -1;  ///< its row in the newest of these passes
  bool waits = false;     ///< until another sequence has computed the beginning of its prompt
  bool ended = false;     ///< its answer is complete, but a pass in flight still computes a token after it
  HeldPages held;

  /// Whether all tokens except the newest are cached, and the newest is part of the answer.
  bool decodes() const { return !answer.ids.empty() && cached + 1 == tokens.size(); }
  /// Tokens that are known and cached.
  std::size_t known() const { return std::min(cached, tokens.size()); }
  /// Whether its next pass can take the unknown token of the pass in flight: the length limit allows another
  /// token after it.
  bool can_be_followed(std::size_t capacity) const {
    return in_flight == 1 && !ended && cached == tokens.size() && tokens.size() + 1 < longest(capacity);
  }
  /// Most tokens of prompt and answer.
  std::size_t longest(std::size_t capacity) const {
    return std::min(capacity, asked.prompt.size() + static_cast<std::size_t>(options.max_new));
  }
};

}  // namespace octet::generate
