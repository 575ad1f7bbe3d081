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
  /// A role whose contents the folder's template writes otherwise if blanks stand around them; "" for none.
  /// Where the template trims them, `found` trims them, too.
  std::string other_blanks;
};

/// The folder's chat template in Jinja: chat_template.jinja, or `chat_template` of tokenizer_config.json (of
/// several the one named default; `with_tools`: the one named tool_use, where there is one, as transformers
/// takes it for conversations with tools). Nothing when there is none. Throws Error for a file that cannot be
/// read.
std::optional<std::string> folder_template(const std::string& folder, bool with_tools = false);

/// Renders conversations with the folder's chat template and with every row of the table, and takes the row
/// whose texts are all the same: with and without system message, of several turns, and what stands before an
/// answer. Where several rows write the same, the one that also writes a tool's answer the same, else the
/// first by name. `tokenizer` is that of the folder, as it was read.
TemplateMatch match_template(const std::string& folder, const Tokenizer& tokenizer);

/// The same for a chat template in Jinja; reasons call it `whose` ("the model's own chat template").
TemplateMatch match_jinja(const std::string& source, const std::string& whose, const Tokenizer& tokenizer);

/// Whether a template is named by its file: one in Jinja (.jinja, .jinja2, .j2).
bool is_template_file(const std::string& name);

/// The template of this name: of the table, or of a file in Jinja. Where the file holds a chat template that
/// writes as one of the table does, that one; else each question and answer is rendered by the file, which is
/// read now. `tokenizer` is that of the folder, as it was read. Throws Error (usage) for a name that is not
/// known, and a file that cannot be used.
ChatTemplate template_named(const std::string& name, const Tokenizer& tokenizer);

/// "; blanks around contents are trimmed: …" for a template that trims; else "".
std::string told_of_trims(const ChatTemplate& chat);

/// What a template that was named by a file is, for people: one line.
std::string told_of_file(const std::string& name, const ChatTemplate& chat, const Tokenizer& tokenizer);

/// Whether the folder's own chat template writes what `chat` does with these options (jinja_of) in all that
/// it can write: system messages, several turns, questions that wait for an answer, tools, calls of them,
/// their answers and, where `chat` has them, thoughts. An error where `chat` writes is a difference.
/// `tokenizer` is prepared for `chat`. Throws Error for a file that cannot be read.
bool folder_writes_as(const std::string& folder, const ChatTemplate& chat, const TemplateOptions& options,
                      const Tokenizer& tokenizer);

}  // namespace octet::text
