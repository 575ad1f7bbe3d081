// One row of the table of templates, and the writing of turns with it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "octet/text/chat_template.h"
#include "tool_format.h"

namespace octet::text {

class TemplateFile;

/// A string with {{content}}, or a token of its own.
struct Slot {
  enum class Kind { text, bos, eos };
  Kind kind = Kind::text;
  std::string text;
};
using Slots = std::vector<Slot>;

struct ChatTemplate::Row {
  std::string name;
  Slots prefix, system, user, assistant, observation, function;
  std::string tool_format, default_system;
  std::vector<std::string> stop_words;
  bool replace_eos = false, efficient_eos = false, fuse_system = false, thinks = false;
  /// Roles whose contents lose the blanks around them, as with Jinja's trim: system, user, assistant,
  /// observation.
  std::set<std::string> trims;
  /// Of a row that stands in no table: the file that writes in its place; `name` is its path.
  std::shared_ptr<const TemplateFile> file;

  static const Row& of(const ChatTemplate& chat) { return *chat.row_; }
  static ChatTemplate make(Row row) { return ChatTemplate(std::make_shared<const Row>(std::move(row))); }
};

/// The conversation with the contents that the row trims.
Conversation trimmed(const ChatTemplate::Row& row, Conversation conversation);

/// What calls stand in: a tool format of the user's own comes with endings of its own.
const Slots& function_slots(const ChatTemplate::Row& row, const TemplateOptions& options);

/// Null when the table has no such row.
std::shared_ptr<const ChatTemplate::Row> find_row(const std::string& name);
std::vector<std::string> row_names();
/// All that decides what the row of this name writes, as text.
std::string row_words(const std::string& name);

/// Says that a template does not write the thought of a message.
std::string unwritten_thought(const Message& message);

/// Token ids of each message of a conversation: even places are questions (with prefix and system before the
/// first), odd places answers.
using EncodedTurns = std::vector<std::vector<TokenId>>;

/// The turns as training sees them. `discard_history` drops thoughts of all answers but the last. Throws
/// Refusal.
EncodedTurns encode_turns(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                          const TemplateOptions& options, bool discard_history);

/// Before and behind the last answer as generation sees them. Throws Refusal.
Prompt encode_last_turn(const ChatTemplate::Row& row, const Tokenizer& tokenizer, Conversation conversation,
                        const TemplateOptions& options);

/// A conversation as text, thoughts as a finished conversation shows them: an empty one in the last answer
/// only. Throws Refusal.
std::string write_text(const ChatTemplate::Row& row, const Tokenizer& tokenizer,
                       const Conversation& conversation);

/// "09 Mar 2026" for "2026-03-09"; today for "". Throws Error for what is no date.
std::string written_date(const std::string& date);

}  // namespace octet::text
