#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/data/encode.h"
#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::data {

struct TemplateEncoderOptions {
  std::string folder;                        ///< of the tokenizer's files
  std::optional<std::string> template_name;  ///< needed for conversations; nothing: plain text only
  text::TemplateOptions options;
};

/// Conversations by a chat template; plain text as Hugging Face trains it: the text with its end token behind
/// (and bos in front where the tokenizer adds one), all of it trained, in pieces of cutoff_len.
class TemplateEncoder final : public Encoder {
 public:
  /// Reads the tokenizer and prepares it for the template. Throws Error for a missing or broken tokenizer, an
  /// unknown template, options that exclude each other.
  explicit TemplateEncoder(const TemplateEncoderOptions& options);

  EncodedSample encode(const Sample& sample) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::optional<text::ChatTemplate>& chat_template() const { return template_; }
  /// Ids that end an answer.
  std::vector<std::int32_t> stop_ids() const;

 private:
  EncodedSample encode_text(const std::string& text) const;

  text::TemplateOptions options_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::string end_of_text_;
  std::string begin_of_text_;  ///< "" when the tokenizer adds none
};

}  // namespace octet::data
