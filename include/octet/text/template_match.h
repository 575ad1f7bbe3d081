#pragma once

#include <optional>
#include <string>

#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::text {

/// The template of a table row that writes what a model folder's own chat template writes.
struct TemplateMatch {
  std::optional<ChatTemplate> found;
  std::string reason;  ///< why none was found; "" where the folder has no chat template
};

/// The folder's chat template in Jinja: chat_template.jinja, or `chat_template` of tokenizer_config.json (of
/// several the one named default). Nothing when there is none. Throws Error for a file that cannot be read.
std::optional<std::string> folder_template(const std::string& folder);

/// Renders conversations with the folder's chat template and with every row of the table, and takes the row
/// whose texts are all the same: with and without system message, of several turns, and what stands before an
/// answer. Where several rows write the same, the one that also writes a tool's answer the same, else the
/// first by name. `tokenizer` is that of the folder, as it was read.
TemplateMatch match_template(const std::string& folder, const Tokenizer& tokenizer);

/// The same for a chat template in Jinja; reasons call it `whose` ("the model's own chat template").
TemplateMatch match_jinja(const std::string& source, const std::string& whose, const Tokenizer& tokenizer);
/// Whether a chat template in Jinja writes what `chat` does, as far as it renders at all. `tokenizer` is
/// prepared for `chat`.
bool writes_as(const std::string& source, const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace octet::text
