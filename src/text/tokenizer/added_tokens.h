// The `added_tokens` of a tokenizer file: strings that are matched before all other steps.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "octet/text/tokenizer.h"
#include "tokenizer/normalizer.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace octet::text {

/// A part of a text, or a token that was found in it.
struct Found {
  TextView view;
  TokenId id = -1;  ///< -1 for text
};

/// Finds strings in a text: the leftmost match, and the longest one if several begin there.
class StringSet {
 public:
  StringSet() { nodes_.emplace_back(); }
  /// Adds a string. If equal strings are added, only the first is used.
  void add(std::string_view text, std::size_t value);
  /// Finds the first match at or after `from`. Returns false if there is none.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end,
            std::size_t& value) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
    std::size_t value = kNone;
  };
  const Node* child(const Node& node, unsigned char byte) const;
  std::vector<Node> nodes_;
  std::array<std::uint32_t, 256> roots_{};  ///< children of the root; 0 for none
};

class AddedTokens {
 public:
  /// Adds a token, or replaces the flags of the token with this id.
  void set(const AddedToken& token, TokenId id);
  /// Builds the matchers. Call it after the last set(). Applies `normalizer` (may be null) to tokens with
  /// `normalized`.
  void index(const Normalizer* normalizer);

  /// Cuts `view` at the tokens with the given `normalized` flag, and appends texts and tokens to `out`. Does
  /// not match special tokens in the ranges that `options` makes text.
  void cut(const TextView& view, bool normalized, const EncodeOptions& options,
           std::vector<Found>& out) const;

  const AddedToken* find(TokenId id) const;
  /// Returns the id of the token with this content, or -1.
  TokenId find(const std::string& content) const;
  bool is_special(const std::string& content) const { return special_.contains(content); }
  /// All tokens in the order of their addition.
  const std::vector<std::pair<TokenId, AddedToken>>& all() const { return tokens_; }

 private:
  std::vector<std::pair<TokenId, AddedToken>> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  std::unordered_map<std::string, TokenId> by_content_;
  std::unordered_set<std::string> special_;
  StringSet raw_, normalized_;
  CharSet white_{white_space()}, word_{};
};

}  // namespace octet::text
