#pragma once

#include <optional>
#include <string>

#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::text {

/// The row of the table that writes the same text as the chat template of a model's folder.
struct TemplateMatch {
  std::optional<ChatTemplate> found;
  std::string reason;  ///< why none was found; "" if the folder has no chat template
  /// A role with contents that the folder's template writes differently if blanks surround them; "" for none.
  /// If the template trims these blanks, `found` trims them, too.
  std::string other_blanks;
};

/// Returns the folder's Jinja chat template: chat_template.jinja, or `chat_template` of
/// tokenizer_config.json. If there are several, returns the template named default. With `with_tools`,
/// prefers the template named tool_use, like transformers for conversations with tools. Returns nullopt if
/// there is none. Throws Error for an unreadable file.
std::optional<std::string> folder_template(const std::string& folder, bool with_tools = false);

/// Renders test conversations with the folder's chat template and with every row of the table. Returns the
/// row that writes equal texts for all of them: with and without system message, with several turns, and
/// prompts that end before an answer. If several rows match, prefers rows that also write a tool's answer
/// equally, then the row that agrees in most conversations with tools, calls and thoughts, then the first row
/// of the table. `tokenizer` is the unmodified tokenizer of the folder.
TemplateMatch match_template(const std::string& folder, const Tokenizer& tokenizer);

/// Like match_template(), but for the Jinja source of a chat template. Reasons name it by `whose` ("the
/// model's own chat template").
TemplateMatch match_jinja(const std::string& source, const std::string& whose, const Tokenizer& tokenizer);

/// Whether the name of a template is a path of a Jinja file (.jinja, .jinja2, .j2).
bool is_template_file(const std::string& name);

/// Returns the template of a name of the table or of a path of a Jinja file, which is read now. If the file
/// matches a row of the table, returns this row. Otherwise the file renders each question and answer.
/// `tokenizer` is the unmodified tokenizer of the folder. Throws Error (usage) for an unknown name and for an
/// unusable file.
ChatTemplate template_named(const std::string& name, const Tokenizer& tokenizer);

/// Returns "; blanks around contents are trimmed: …" for a template that trims, otherwise "".
std::string told_of_trims(const ChatTemplate& chat);

/// Returns a one-line description of a template from a file, for the log.
std::string told_of_file(const std::string& name, const ChatTemplate& chat, const Tokenizer& tokenizer);

/// Returns whether a folder has a processor of images, and a chat template that writes places for images.
bool folder_writes_images(const std::string& folder);

/// Whether the folder's chat template writes the same text as `chat` with these options (jinja_of). Compares
/// all that `chat` can write: system messages, several turns, unanswered questions, tools, tool calls,
/// answers of tools, and thoughts if `chat` has them. If only the folder's template fails, that is a
/// difference. `tokenizer` is prepared for `chat`. Throws Error for an unreadable file.
bool folder_writes_as(const std::string& folder, const ChatTemplate& chat, const TemplateOptions& options,
                      const Tokenizer& tokenizer);

}  // namespace octet::text
