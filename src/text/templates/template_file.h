// A template in a Jinja file of the user, for conversations or for one question.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/text/jinja.h"
#include "templates/template_row.h"

namespace octet::text {

/// Renders a Jinja file and splits the text at the start and end of answers. If tokens end at these places,
/// too, the pieces are tokenised as one text, like a server does.
class TemplateFile {
 public:
  enum class Kind {
    conversation,  ///< loops over `messages`, like Hugging Face's templates
    question,      ///< inserts one question, like SFT-Play's; the answer and eos follow
  };

  /// Reads the file and detects its kind. Throws Error (usage) if the file is missing, is not Jinja, or uses
  /// unknown variables.
  explicit TemplateFile(std::string path);

  const std::string& path() const { return path_; }
  const std::string& source() const { return source_; }
  Kind kind() const { return kind_; }
  bool asks_for(const std::string& name) const { return asks_.contains(name); }
  bool asks_for_the_time() const { return source_.find("strftime_now") != std::string::npos; }
  /// The variable of the question, with Kind::question.
  const std::string& question() const { return question_; }
  /// Returns true if a text begins with a bos that the file does not write.
  bool adds_bos(const Tokenizer& tokenizer) const;

  /// Throws Error (usage) for options that files do not support.
  void check(const TemplateOptions& options) const;
  /// Renders a test question and its answer. Throws Error (usage) if no token of them can be trained.
  /// `tokenizer` must be prepared.
  void require_usable(const Tokenizer& tokenizer) const;
  /// Returns the token that ends an answer; "" if there is none.
  std::string end_token(const Tokenizer& tokenizer) const;

  /// Returns the ids of alternating questions and answers. Some files write earlier turns differently if
  /// others follow. Then, with `last_alone`, returns all before the last answer and the last answer. Without
  /// it, throws Refusal. A last question without an answer has no answer in the result.
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

/// Returns the file as a chat template for the folder of a model. A file for conversations is returned with
/// statements for the options before it. A file for one question becomes a loop over the questions.
std::string jinja_of_file(const TemplateFile& file, const TemplateOptions& options,
                          const Tokenizer& tokenizer);

}  // namespace octet::text
