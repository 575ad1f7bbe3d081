// A chat template in Jinja, the language of Hugging Face's tokenizer_config.json: as much of it as such
// templates use, rendered as transformers does (trim_blocks, lstrip_blocks, loop controls, undefined values
// print nothing). A template comes with a model from outside, so its work is bounded: steps, bytes and
// nesting have limits.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"

namespace octet::text {

namespace jinja {
struct Block;
}

class JinjaTemplate {
 public:
  /// Throws Error for what is no template, with the line; for statements and operators that are not known.
  explicit JinjaTemplate(std::string_view source);
  /// The text for these variables (an object). strftime_now gives the time of the call; raise_exception,
  /// unknown filters and functions, and work without end throw Error.
  std::string render(const Json& variables) const;

 private:
  std::shared_ptr<const jinja::Block> body_;
};

}  // namespace octet::text
