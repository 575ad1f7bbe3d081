// Chat templates in Jinja, the language of Hugging Face's tokenizer_config.json. Implements the subset that
// chat templates use, with the settings of transformers: trim_blocks, lstrip_blocks, loop controls, and
// undefined values that print nothing. A template is untrusted, so steps, bytes and nesting are limited.
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
  /// Throws Error with the line for an invalid template, and for unknown statements and operators.
  explicit JinjaTemplate(std::string_view source);
  /// Returns the text for these variables (an object). strftime_now formats the time of the call. Throws
  /// Error for raise_exception, for unknown filters and functions, and if a limit is exceeded.
  std::string render(const Json& variables) const;

 private:
  std::shared_ptr<const jinja::Block> body_;
};

}  // namespace octet::text
