// Converts questions to token ids: by a template of the table, by the model's Jinja template, or as plain
// text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answer_rows.h"
#include "model_source.h"
#include "octet/answers/generate_options.h"
#include "octet/data/template_encoder.h"
#include "octet/text/jinja.h"

namespace octet::answers {

/// Converts questions and answers to ids. The first of these templates is used:
/// 1. the template of --template;
/// 2. the template of the checkpoint's run;
/// 3. the template of the table that renders like the folder's template;
/// 4. the Jinja template of the folder.
/// Without any of them, text is continued.
class QuestionWriter {
 public:
  /// Throws Error (usage) for settings that need a missing tokenizer or template, and like TemplateEncoder.
  QuestionWriter(const GenerateOptions& options, const ModelSource& source);

  bool has_tokenizer() const { return encoder_.has_value(); }
  /// Throws Error (usage) if there is none.
  const text::Tokenizer& tokenizer() const;
  /// Whether questions are rendered by a template. Without a template their text is continued.
  bool chats() const { return encoder_ && (encoder_->chat_template() || jinja_ || !why_not_.empty()); }
  /// Returns the ids of a question up to the start of its answer. Throws Error (usage) if it cannot be
  /// rendered.
  std::vector<std::int32_t> prompt(const Question& question) const;
  /// Returns the ids of a question and its answer as training sees them. Plain text gives the ids that
  /// pre-training would use. `judged`: as training with preferences sees them.
  std::vector<std::int32_t> whole(const Question& question, bool judged = false) const;
  /// Returns the ids that end an answer.
  std::vector<std::int32_t> stop_ids() const;
  /// Returns all that decides the ids of a text: names and values, one per line.
  std::string recipe() const;
  /// Names the used template for people; "" if --template names it.
  const std::string& told() const { return told_; }
  /// Names a setting without effect for people; "": none.
  std::string doubt() const;

 private:
  void require_settings_fit(const std::string& words) const;
  void find_template(const ModelSource& source);
  void require_usable() const;
  std::string rendered(const Question& question, bool asks) const;
  std::string system_of(const Question& question) const;

  GenerateOptions options_;
  text::TemplateOptions how_;
  std::optional<data::TemplateEncoder> encoder_;
  std::string source_;  ///< source of the Jinja template
  std::optional<text::JinjaTemplate>
      jinja_;                     ///< the folder's template, if no template of the table renders like it
  std::string folder_, why_not_;  ///< why_not_: why the folder's template cannot be used
  std::string told_;
};

}  // namespace octet::answers
