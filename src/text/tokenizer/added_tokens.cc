#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace octet::text {
namespace {

bool touches(const Span& found, std::span<const Span> stretches) {
  return std::ranges::any_of(stretches,
                             [&](const Span& s) { return found.begin < s.end && s.begin < found.end; });
}

}  // namespace

void StringSet::add(std::string_view text, std::size_t value) {
  if (text.empty()) return;
  std::uint32_t at = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[at].children;
    const auto place = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0u});
    if (place != children.end() && place->first == byte) {
      at = place->second;
      continue;
    }
    const auto fresh = static_cast<std::uint32_t>(nodes_.size());
    children.insert(place, {byte, fresh});
    if (at == 0) roots_[byte] = fresh;
    nodes_.emplace_back();
    at = fresh;
  }
  if (nodes_[at].value == kNone) nodes_[at].value = value;
}

const StringSet::Node* StringSet::child(const Node& node, unsigned char byte) const {
  const auto place = std::lower_bound(node.children.begin(), node.children.end(), std::pair{byte, 0u});
  return place != node.children.end() && place->first == byte ? &nodes_[place->second] : nullptr;
}

bool StringSet::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end,
                     std::size_t& value) const {
  if (empty()) return false;
  for (begin = from; begin < text.size(); ++begin) {
    const std::uint32_t root = roots_[static_cast<unsigned char>(text[begin])];
    if (root == 0) continue;
    bool found = false;
    const Node* node = &nodes_[root];
    for (std::size_t i = begin + 1;; ++i) {
      if (node->value != kNone) {
        end = i;
        value = node->value;
        found = true;
      }
      if (i == text.size() || !(node = child(*node, static_cast<unsigned char>(text[i])))) break;
    }
    if (found) return true;
  }
  return false;
}

void AddedTokens::set(const AddedToken& token, TokenId id) {
  if (token.special) special_.insert(token.content);
  by_content_[token.content] = id;
  const auto [it, fresh] = by_id_.try_emplace(id, tokens_.size());
  if (fresh) {
    tokens_.emplace_back(id, token);
  } else {
    tokens_[it->second].second = token;
  }
}

void AddedTokens::index(const Normalizer* normalizer) {
  raw_ = StringSet();
  normalized_ = StringSet();
  word_ = CharSet(words_and_joiners());
  for (const bool special : {true, false}) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i].second;
      if (token.special != special) continue;
      if (!token.normalized) {
        raw_.add(token.content, i);
      } else if (!normalizer || normalizer->keeps(token.content)) {
        normalized_.add(token.content, i);
      } else {
        normalized_.add(normalizer->apply({token.content}).text, i);
      }
    }
  }
}

void AddedTokens::cut(const TextView& view, bool normalized, const EncodeOptions& options,
                      std::vector<Found>& out) const {
  const StringSet& set = normalized ? normalized_ : raw_;
  const std::string_view text = view.text;
  std::size_t done = 0, from = 0, begin = 0, end = 0, which = 0;
  while (set.find(text, from, begin, end, which)) {
    from = end;
    const auto& [id, token] = tokens_[which];
    if (token.special && (options.split_special || touches(view.range(begin, end), options.literal)))
      continue;
    if (token.single_word) {
      if (begin > 0 && word_.contains(utf8_at(utf8_before(text.data(), text.data() + begin)))) continue;
      if (end < text.size() && word_.contains(utf8_at(text.data() + end))) continue;
    }
    if (token.lstrip) {
      std::size_t left = begin;
      while (left > 0) {
        const char* before = utf8_before(text.data(), text.data() + left);
        if (!white_.contains(utf8_at(before))) break;
        left = static_cast<std::size_t>(before - text.data());
      }
      begin = std::max(left, done);
    }
    if (token.rstrip) {
      while (end < text.size() && white_.contains(utf8_at(text.data() + end))) {
        end += utf8_length(static_cast<unsigned char>(text[end]));
      }
    }
    if (begin > done) out.push_back({view.slice(done, begin)});
    out.push_back({view.slice(begin, end), id});
    done = end;
  }
  if (done < text.size()) out.push_back({view.slice(done, text.size())});
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second].second;
}

TokenId AddedTokens::find(const std::string& content) const {
  const auto it = by_content_.find(content);
  return it == by_content_.end() ? -1 : it->second;
}

}  // namespace octet::text
