// A row of the table of templates, and functions that write turns with it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/text/chat_template.h"
#include "templates/tool_format.h"

namespace octet::text {

class TemplateFile;

/// A string with {{content}}, or one special token.
struct Slot {
  enum class Kind { text, bos, eos };
  Kind kind = Kind::text;
  std::string text;
};
using Slots = std::vector<Slot>;

/// The words around a part of an answer.
struct WordPair {
  std::string begin, end;
};

struct ChatTemplate::Row {
  std::string name;
  Slots prefix, system, user, assistant, observation, function;
  std::string tool_format, default_system;
  std::vector<std::string> stop_words;
  WordPair thought_words{"<think>\n", "\n</think>\n\n"};
  std::string empty_thought;
  bool replace_eos = false, efficient_eos = false, fuse_system = false, thinks = false;
  /// Roles with contents that are trimmed like with Jinja's trim: system, user, assistant, observation.
  std::set<std::string> trims;
  /// The Jinja file of a template that is not in the table; `name` is its path.
  std::shared_ptr<const TemplateFile> file;

  static const Row& of(const ChatTemplate& chat) { return *chat.row_; }
  static ChatTemplate make(Row row) { return ChatTemplate(std::make_shared<const Row>(std::move(row))); }
};

/// Returns the conversation with trimmed contents of the roles in Row::trims.
Conversation trimmed(const ChatTemplate::Row& row, Conversation conversation);

/// Returns the slots around tool calls. If the options set a tool format, these are the content and an eos
/// (no eos with efficient_eos).
const Slots& function_slots(const ChatTemplate::Row& row, const TemplateOptions& options);

/// Returns null if the table has no such row.
std::shared_ptr<const ChatTemplate::Row> find_row(const std::string& name);
std::vector<std::string> row_names();
/// In the order of the table: templates for models of any family come first.
std::vector<std::string> row_names_in_order();
/// Returns the names of rows, and other names for them.
std::vector<std::string> template_names();
/// Returns all fields of the row that affect its texts, for a hash.
std::string row_words(const std::string& name);

/// Returns a message: a template does not write the thought of `message`.
std::string unwritten_thought(const Message& message);

/// Token ids of each message of a conversation. Even indices are questions, and odd indices are answers. The
/// first question includes prefix and system text.
using EncodedTurns = std::vector<std::vector<TokenId>>;

/// Encodes the turns for training. `discard_history` drops the thoughts of all answers except the last one.
/// Throws Refusal.
EncodedTurns encode_turns(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                          const TemplateOptions& options, bool discard_history);

/// Encodes the prompt before the last answer, and the answer, for generation. Throws Refusal.
Prompt encode_last_turn(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                        const TemplateOptions& options);

/// Returns a finished conversation as text. Only a last answer without a thought gets an empty thought.
/// Throws Refusal.
std::string write_text(const ChatTemplate::Row& row, const Tokenizer& tokenizer,
                       const Conversation& conversation);

/// Returns "09 Mar 2026" for "2026-03-09", and today for "". Throws Error for an invalid date.
std::string written_date(const std::string& date);

/// A part of the table of tool formats and chat templates, as JSON lists. template_table.cc documents the
/// fields.
struct TemplateTable {
  std::string_view formats, rows;
};
TemplateTable general_rows();
TemplateTable family_rows();

/// The whole table: {"tool_formats": [...], "templates": [...]}.
const Json& template_table();

}  // namespace octet::text
