// Chat templates: from a conversation to token ids and labels, as LLaMA-Factory's templates of the same name.
//
// A template is a row of a table (src/text/template_table.cc): lists of slots, each a string with {{content}}
// in it or a single special id. Every string is tokenised alone, so nothing merges across slots; special
// tokens that users typed become their ids.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/text/tokenizer.h"

namespace octet::text {

/// Label of a token that is not trained.
constexpr TokenId kIgnore = -100;

struct Message {
  std::string role;  ///< user, assistant, observation (a tool's answer), function (calls as JSON)
  std::string content;
  std::string thought = {};        ///< what an answer thinks before it speaks; "" means none
  std::string thought_field = {};  ///< the field of a row that held the thought
  std::string text = {};           ///< of a function message: the text before the calls
  bool trained = true;             ///< false: an answer that is shown and not trained
};

struct Conversation {
  std::vector<Message> messages;
  std::string system;                        ///< "" means the template's default
  std::string tools;                         ///< a JSON list as text; "" means none
  std::optional<bool> enable_thinking = {};  ///< in place of TemplateOptions::enable_thinking
};

struct TemplateOptions {
  std::int64_t cutoff_len = 2048;  ///< at most so many tokens an example
  bool mask_history = false;       ///< train the last answer only; cuts the earliest turns first
  bool train_on_prompt = false;
  std::optional<bool> enable_thinking =
      true;  ///< for templates with thoughts; nothing is LLaMA-Factory's null
  bool preserve_thinking = false;
  std::optional<std::string> default_system;  ///< in place of the template's own
  std::optional<std::string> tool_format;  ///< in place of the template's own: default, llama3, qwen, mistral
  /// Special tokens that stand in messages and system texts are text there; the template's own stay tokens.
  bool split_special_tokens = false;
  std::string date;  ///< YYYY-MM-DD where a template prints the date; "" is today
};

/// What training sees of a conversation.
struct Example {
  enum class Outcome {
    kept,
    dropped,  ///< yields nothing: the turns do not pair up
    refused,  ///< cannot be written: calls or tools that are not JSON, options that exclude each other
  };
  Outcome outcome = Outcome::kept;
  std::string reason;  ///< why it was dropped or refused
  std::vector<TokenId> input_ids;
  std::vector<TokenId> labels;    ///< as long as input_ids, not shifted; kIgnore where not trained
  bool truncated = false;         ///< tokens were cut off
  bool answer_truncated = false;  ///< among them tokens of an answer that would have been trained
};

/// A conversation's last answer against all before it.
struct Prompt {
  Example::Outcome outcome = Example::Outcome::kept;
  std::string reason;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> response_ids;
};

/// One row of the table, or a file in Jinja that writes in its place. Cheap to copy; const functions may be
/// called from several threads at once.
class ChatTemplate {
 public:
  struct Row;

  /// A row of the table; or a file in Jinja, by its path (.jinja, .jinja2, .j2), which is read now. Throws
  /// Error with the nearest name when there is none, and for a file that cannot be used.
  static ChatTemplate find(const std::string& name);
  static std::vector<std::string> names();

  const std::string& name() const;
  /// Hash of all that the template writes, tool formats included.
  std::string words_hash() const;
  /// True when what is written holds the day (TemplateOptions::date).
  bool prints_date(const TemplateOptions& options) const;
  /// True when answers are told to end by one eos behind the last turn only.
  bool efficient_eos() const;
  /// True when answers carry thoughts.
  bool thinks() const;
  /// True when answers end in no token at all, so that a model never learns to stop.
  bool never_ends() const;

  /// Throws Error when the options exclude each other or the template: mask_history with train_on_prompt,
  /// train_on_prompt with efficient eos, an unknown tool format, a date that is none, cutoff_len below 1.
  void check(const TemplateOptions& options) const;

  /// Makes the tokenizer fit: the eos that the template ends its turns with, a pad where there is none, stop
  /// words as special tokens. Returns tokens that were added to the vocabulary, in the order of their ids.
  std::vector<std::string> prepare(Tokenizer& tokenizer) const;
  /// Ids that end an answer, ascending; for a prepared tokenizer.
  std::vector<TokenId> stop_ids(const Tokenizer& tokenizer) const;

  /// `tokenizer` must be prepared. Never throws for what a conversation holds.
  Example encode_example(const Tokenizer& tokenizer, const Conversation& conversation,
                         const TemplateOptions& options = {}) const;
  /// The last message is the answer; when their number is odd an empty answer is put behind. cutoff_len,
  /// mask_history and train_on_prompt do not matter here.
  Prompt encode_prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                       const TemplateOptions& options = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const Row> row) : row_(std::move(row)) {}
  std::shared_ptr<const Row> row_;
};

/// The day as templates write it: "09 Mar 2026".
std::string today(const TemplateOptions& options);

}  // namespace octet::text
