#include "octet/text/jinja.h"

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::fuzz {

void jinja(std::string_view bytes) {
  static const Json variables{{"messages",
                               {{{"role", "system"}, {"content", "be brief"}},
                                {{"role", "user"}, {"content", " a question "}},
                                {{"role", "assistant"}, {"content", "<think>\nno\n</think>\n\nan answer"}}}},
                              {"tools", {{{"name", "f"}, {"parameters", {{"x", 1.5}}}}}},
                              {"bos_token", "<s>"},
                              {"eos_token", "</s>"},
                              {"add_generation_prompt", true}};
  try {
    text::JinjaTemplate(bytes).render(variables);
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
