// A template that stands in a file of the user's own, in Jinja: of conversations, or of one question.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/text/jinja.h"
#include "template_row.h"

namespace octet::text {

/// What the file writes is cut where answers begin and end. As long as tokens end there, too, the pieces are
/// tokenised as one text, as a server does it.
class TemplateFile {
 public:
  enum class Kind {
    conversation,  ///< goes through `messages`, as Hugging Face's
    question,      ///< fills one question in, as SFT-Play's; the answer and eos stand behind it
  };

  /// Reads the file and looks which of the two it is. Throws Error (usage) for one that is missing, is no
  /// Jinja, or asks for what is not there.
  explicit TemplateFile(std::string path);

  const std::string& path() const { return path_; }
  const std::string& source() const { return source_; }
  Kind kind() const { return kind_; }
  bool asks_for(const std::string& name) const { return asks_.contains(name); }
  bool asks_for_the_time() const { return source_.find("strftime_now") != std::string::npos; }
  /// The variable that holds the question, of Kind::question.
  const std::string& question() const { return question_; }
  /// True when a text begins with bos that the file does not write.
  bool adds_bos(const Tokenizer& tokenizer) const;

  /// Throws Error (usage) for options that a file cannot honour.
  void check(const TemplateOptions& options) const;
  /// Writes a question and its answer. Throws Error (usage) when nothing can be trained on them. `tokenizer`
  /// is prepared.
  void require_usable(const Tokenizer& tokenizer) const;
  /// The token that ends an answer; "" when none does.
  std::string end_token(const Tokenizer& tokenizer) const;

  /// Ids of questions and answers in turn. Where the file writes earlier turns otherwise once others follow:
  /// with `last_alone` the whole up to the last answer, and that, else Refusal. A last question without an
  /// answer has none.
  EncodedTurns turns(const Tokenizer& tokenizer, const Conversation& conversation,
                     const TemplateOptions& options, bool last_alone) const;

 private:
  std::vector<std::string> texts(const Tokenizer& tokenizer, const Conversation& conversation,
                                 const TemplateOptions& options, bool last_alone) const;
  std::vector<std::string> of_conversation(const Tokenizer& tokenizer, const Conversation& conversation,
                                           const TemplateOptions& options, bool last_alone) const;
  std::vector<std::string> of_questions(const Tokenizer& tokenizer, const Conversation& conversation,
                                        const TemplateOptions& options) const;
  std::string rendered(const Tokenizer& tokenizer, Json variables) const;
  [[noreturn]] void refuse(const Error& error) const;

  std::string path_, source_;
  std::set<std::string> asks_;
  Kind kind_ = Kind::conversation;
  std::string question_;
  std::unique_ptr<const JinjaTemplate> jinja_;
};

/// The file as a chat template for the folder of a model: itself where it writes conversations, with what the
/// options say in front; else one that fills in the questions of a conversation.
std::string jinja_of_file(const TemplateFile& file, const TemplateOptions& options,
                          const Tokenizer& tokenizer);

}  // namespace octet::text
