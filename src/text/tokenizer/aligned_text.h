// Text between the input and words, with the source of each byte in the input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/text/tokenizer.h"
#include "unicode/utf8.h"

namespace octet::text {

/// A part of a text. `source` is null if the text is a slice of the input at byte `origin`. Otherwise it has
/// the range of the input for each byte. Does not own its memory.
struct TextView {
  std::string_view text;
  const Span* source = nullptr;
  std::uint32_t origin = 0;

  TextView slice(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), source ? source + begin : nullptr,
            origin + static_cast<std::uint32_t>(begin)};
  }
  /// Returns the range of the input for bytes [begin, end), begin < end, in whole characters.
  Span range(std::size_t begin, std::size_t end) const {
    if (source) return {source[begin].begin, source[end - 1].end};
    while (begin > 0 && utf8_continues(text[begin])) --begin;
    while (end < text.size() && utf8_continues(text[end])) ++end;
    return {origin + static_cast<std::uint32_t>(begin), origin + static_cast<std::uint32_t>(end)};
  }
};

/// A text that differs from the input, with the source of each byte.
struct AlignedText {
  std::string text;
  std::vector<Span> source;

  AlignedText() = default;
  explicit AlignedText(const TextView& view);
  TextView view() const { return {text, source.data(), 0}; }
  void append(std::string_view bytes, Span from) {
    text.append(bytes);
    source.insert(source.end(), bytes.size(), from);
  }
  void append(const TextView& view);
};

}  // namespace octet::text
