#include "unicode/utf8.h"

namespace octet::text {

Utf8Step utf8_step(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t length = utf8_length(lead);
  // The second byte excludes overlong forms, surrogates and code points above U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80, high = 0xBF;
  }
  return {length, true, false};
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.valid) {
      out.append(bytes.substr(0, step.size));
    } else {
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(step.size);
  }
  return out;
}

AlignedText::AlignedText(const TextView& view) {
  text.reserve(view.text.size());
  source.reserve(view.text.size());
  append(view);
}

void AlignedText::append(const TextView& view) {
  text.append(view.text);
  if (view.source) {
    source.insert(source.end(), view.source, view.source + view.text.size());
    return;
  }
  for (std::size_t i = 0; i < view.text.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(view.text[i]));
    source.insert(source.end(), length, view.range(i, i + length));
    i += length;
  }
}

}  // namespace octet::text
