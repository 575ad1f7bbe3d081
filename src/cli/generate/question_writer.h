// How questions become token ids: by a template of the table, by a model's own template in Jinja, or as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generate/generate_options.h"
#include "generate/model_source.h"
#include "generate/rows.h"
#include "octet/data/template_encoder.h"
#include "octet/text/jinja.h"

namespace octet::cli {

/// Questions and answers as ids. The template is, in this order: the one that --template names, that of the
/// checkpoint's run, the one of the table that writes as the folder's own does, the folder's own, rendered
/// from Jinja. A folder without any continues text.
class QuestionWriter {
 public:
  /// Throws Error (usage) for settings that need a tokenizer or a template where there is none, and as
  /// TemplateEncoder does.
  QuestionWriter(const GenerateOptions& options, const ModelSource& source);

  bool has_tokenizer() const { return encoder_.has_value(); }
  /// Throws Error (usage) where there is none.
  const text::Tokenizer& tokenizer() const;
  /// Questions are written by a template; without one their text is continued.
  bool chats() const { return encoder_ && (encoder_->chat_template() || jinja_ || !why_not_.empty()); }
  /// Ids of a question, up to where its answer begins. Throws Error (usage) where it cannot be written.
  std::vector<std::int32_t> prompt(const Question& question) const;
  /// Ids of a question and its answer as training sees them; of a plain text those that it is trained as.
  std::vector<std::int32_t> whole(const Question& question) const;
  /// Ids that end an answer.
  std::vector<std::int32_t> stop_ids() const;
  /// All that decides which ids words become: names and values, a line each.
  std::string recipe() const;
  /// Which template writes, for people; "" where --template names it.
  const std::string& told() const { return told_; }
  /// What of the settings changes nothing, for people; "" : nothing.
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
  std::string source_;                        ///< of the template in Jinja
  std::optional<text::JinjaTemplate> jinja_;  ///< the folder's own, where no template of the table writes so
  std::string folder_, why_not_;              ///< why the folder's own template cannot be used
  std::string told_;
};

}  // namespace octet::cli
