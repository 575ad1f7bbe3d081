#include "tokenizer/aligned_text.h"

namespace octet::text {

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
