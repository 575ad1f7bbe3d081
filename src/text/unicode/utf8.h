// Text in UTF-8: its characters, and parts of it with the source of each byte in the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/text/tokenizer.h"

namespace octet::text {

/// Returns the length of the character that starts with `lead`.
inline std::size_t utf8_length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/// Returns the character at `p`.
inline std::uint32_t utf8_at(const char* p) {
  const auto* u = reinterpret_cast<const unsigned char*>(p);
  if (u[0] < 0x80) return u[0];
  if (u[0] < 0xE0) return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
  if (u[0] < 0xF0) return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
  return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
}

inline bool utf8_continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// Returns the start of the character before `end`. `end` must not be `begin`.
inline const char* utf8_before(const char* begin, const char* end) {
  do {
    --end;
  } while (end > begin && utf8_continues(*end));
  return end;
}

inline void utf8_append(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// Calls `use` with the code point of each character of `text` and its bytes [begin, end).
template <class Use>
void each_character(std::string_view text, Use&& use) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = begin + utf8_length(static_cast<unsigned char>(text[begin]));
    use(utf8_at(text.data() + begin), begin, end);
    begin = end;
  }
}

/// The longest well-formed prefix of a character. With `valid`, `size` is the length of the character, 1 to
/// 4. Otherwise `size` is the length of the part that one U+FFFD replaces (Unicode's "maximal subpart").
/// `truncated`: more bytes could complete the character.
struct Utf8Step {
  std::size_t size;
  bool valid;
  bool truncated;
};
Utf8Step utf8_step(std::string_view bytes);

/// Returns `bytes` with each maximal subpart that is not UTF-8 replaced by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

// Text between the input and words, with the source of each byte in the input.

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
