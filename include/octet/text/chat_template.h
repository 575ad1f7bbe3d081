// Chat templates convert a conversation to token ids and labels. They equal LLaMA-Factory's templates of the
// same name.
//
// A template is a row of a table (src/text/templates/template_table.cc). It has lists of slots. A slot is a
// string with
// {{content}}, or a single special id. Each string is tokenised separately, so no token spans two slots.
// Special tokens in texts of users become their ids.
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
  std::string thought = {};        ///< reasoning text before an answer; "" means none
  std::string thought_field = {};  ///< the field of a row that held the thought
  std::string text = {};           ///< of a function message: the text before the calls
  bool trained = true;             ///< false: an answer that is context only
};

struct Conversation {
  std::vector<Message> messages;
  std::string system;                        ///< "" means the template's default
  std::string tools;                         ///< a JSON list as text; "" means none
  std::optional<bool> enable_thinking = {};  ///< overrides TemplateOptions::enable_thinking
};

struct TemplateOptions {
  std::int64_t cutoff_len = 2048;  ///< largest number of tokens of an example
  bool mask_history = false;       ///< train only the last answer; the earliest turns are cut first
  bool train_on_prompt = false;
  std::optional<bool> enable_thinking =
      true;  ///< for templates with thoughts; nullopt is LLaMA-Factory's null
  bool preserve_thinking = false;
  std::optional<std::string> default_system;  ///< overrides the template's default system text
  std::optional<std::string> tool_format;  ///< overrides the format of the template, such as qwen or glm4_moe
  /// Special tokens in messages and system texts are encoded as text. The template's special tokens stay
  /// tokens.
  bool split_special_tokens = false;
  std::string date;  ///< YYYY-MM-DD for templates that print the date; "" is today
};

/// A tokenised conversation for training.
struct Example {
  enum class Outcome {
    kept,
    dropped,  ///< no tokens: the turns do not form pairs
    refused,  ///< cannot be written: calls or tools that are not JSON, or options that exclude each other
  };
  Outcome outcome = Outcome::kept;
  std::string reason;  ///< why it was dropped or refused
  std::vector<TokenId> input_ids;
  std::vector<TokenId> labels;    ///< as long as input_ids, not shifted; kIgnore where not trained
  bool truncated = false;         ///< tokens were cut off
  bool answer_truncated = false;  ///< trained tokens of an answer were cut off
};

/// A conversation split before its last answer.
struct Prompt {
  Example::Outcome outcome = Example::Outcome::kept;
  std::string reason;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> response_ids;
};

/// The numbers of tokens of a question and its answer that fit into `left` tokens, as in LLaMA-Factory.
struct Lengths {
  std::size_t question, answer;
};
Lengths fit(std::size_t question, std::size_t answer, std::size_t left);

/// Two answers to one question. The examples have equal questions, which are not trained.
struct AnswerPair {
  Example::Outcome outcome = Example::Outcome::kept;
  std::string reason;
  Example chosen, rejected;
};

/// A row of the table, or a Jinja file. Cheap to copy. Const functions are thread-safe.
class ChatTemplate {
 public:
  struct Row;

  /// Returns a row of the table by name, or reads a Jinja file by path (.jinja, .jinja2, .j2). Throws Error
  /// for an unknown name (with the nearest name), and for an unusable file.
  static ChatTemplate find(const std::string& name);
  static std::vector<std::string> names();

  const std::string& name() const;
  /// Returns a hash of all texts of the template, including tool formats.
  std::string words_hash() const;
  /// Returns true if the template prints the date (TemplateOptions::date).
  bool prints_date(const TemplateOptions& options) const;
  /// Returns true if only the last answer ends in eos.
  bool efficient_eos() const;
  /// Returns true if answers have thoughts.
  bool thinks() const;

  /// Throws Error if the options exclude each other or the template: mask_history with train_on_prompt,
  /// train_on_prompt with efficient eos, an unknown tool format, an invalid date, or cutoff_len below 1.
  void check(const TemplateOptions& options) const;

  /// Prepares the tokenizer for the template: sets the eos that ends the template's turns, adds a pad token
  /// if there is none, and makes stop words special tokens. Returns the tokens that were added to the
  /// vocabulary, in the order of their ids.
  std::vector<std::string> prepare(Tokenizer& tokenizer) const;
  /// Returns the ids that end an answer, ascending. `tokenizer` must be prepared.
  std::vector<TokenId> stop_ids(const Tokenizer& tokenizer) const;

  /// `tokenizer` must be prepared. Never throws for contents of a conversation: see Example::outcome.
  Example encode_example(const Tokenizer& tokenizer, const Conversation& conversation,
                         const TemplateOptions& options = {}) const;
  /// The last message is the answer. If the number of messages is odd, appends an empty answer. Ignores
  /// cutoff_len, mask_history and train_on_prompt.
  Prompt encode_prompt(const Tokenizer& tokenizer, const Conversation& conversation,
                       const TemplateOptions& options = {}) const;
  /// Encodes the question and the last answer, which alone is trained. Cuts both in proportion to cutoff_len.
  /// Dropped if the cut leaves no token of the answer.
  Example encode_answer(const Tokenizer& tokenizer, const Conversation& conversation,
                        const TemplateOptions& options = {}) const;
  /// Encodes a pair: the last message is the chosen answer, and `rejected` is the other answer. Cuts the
  /// question and the longer answer to cutoff_len, and the shorter answer like the longer one. Only the two
  /// answers are trained. The pair is dropped if the cut leaves no token of an answer, or equal answers.
  AnswerPair encode_pair(const Tokenizer& tokenizer, const Conversation& conversation,
                         const Message& rejected, const TemplateOptions& options = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const Row> row) : row_(std::move(row)) {}
  std::shared_ptr<const Row> row_;
};

/// Returns the date in the format of templates: "09 Mar 2026".
std::string today(const TemplateOptions& options);

}  // namespace octet::text
