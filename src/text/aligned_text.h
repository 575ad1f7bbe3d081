// Text on its way from the input to words, with the place in the input where each byte came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/text/tokenizer.h"
#include "utf8.h"

namespace octet::text {

/// A stretch of text. `source` is null while the text is a slice of the input at byte `origin`; otherwise it
/// holds for each byte the range of the input that it stands for. Does not own what it points to.
struct TextView {
  std::string_view text;
  const Span* source = nullptr;
  std::uint32_t origin = 0;

  TextView slice(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), source ? source + begin : nullptr,
            origin + static_cast<std::uint32_t>(begin)};
  }
  /// Range of the input behind bytes [begin, end), begin < end: whole characters.
  Span range(std::size_t begin, std::size_t end) const {
    if (source) return {source[begin].begin, source[end - 1].end};
    while (begin > 0 && utf8_continues(text[begin])) --begin;
    while (end < text.size() && utf8_continues(text[end])) ++end;
    return {origin + static_cast<std::uint32_t>(begin), origin + static_cast<std::uint32_t>(end)};
  }
};

/// Text that differs from the input, with the source of each byte.
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
