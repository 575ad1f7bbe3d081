#include "octet/text/unknown.h"

#include <algorithm>
#include <vector>

namespace octet::text {

double unknown_share(const Tokenizer& tokenizer, std::string_view text) {
  const Encoding made = tokenizer.encode(text, {.offsets = true});
  std::vector<bool> known(text.size(), false);
  for (std::size_t i = 0; i < made.ids.size(); ++i) {
    const std::string token = tokenizer.id_to_token(made.ids[i]);
    if (made.ids[i] == tokenizer.unk_id() || token == "<unk>" || token == "[UNK]") continue;
    const Span& span = made.offsets[i];
    std::fill(known.begin() + span.begin, known.begin() + span.end, true);
  }
  std::size_t all = 0, found = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::string_view(" \t\r\n").find(text[i]) != std::string_view::npos) continue;
    ++all;
    found += known[i];
  }
  return all == 0 ? 0.0 : 1.0 - static_cast<double>(found) / static_cast<double>(all);
}

}  // namespace octet::text
