#include <cstdlib>
#include <string>

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/text/tokenizer.h"
#include "scratch.h"

namespace octet::fuzz {

void tokenizer_json(std::string_view bytes) {
  scratch_file("tokenizer.json", bytes);
  try {
    const auto tokenizer = text::Tokenizer::from_folder(scratch_folder());
    const std::string sample = "Hello  world's <s>\n\t42 ▁Über café \xF0\x9F\x99\x82<|end|>";
    const auto encoding = tokenizer.encode(sample, {.add_special = true, .offsets = true});
    if (encoding.ids.size() != encoding.offsets.size()) std::abort();
    for (const auto& span : encoding.offsets) {
      if (span.begin > span.end || span.end > sample.size()) std::abort();
    }
    if (tokenizer.encode(sample, {.add_special = true}).ids != encoding.ids) std::abort();
    tokenizer.decode(encoding.ids);
    tokenizer.decode(encoding.ids, true);
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
