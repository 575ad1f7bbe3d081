#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/data/encoder.h"
#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::data {

/// How a plain text is cut.
enum class TextCut {
  pieces,    ///< documents of cutoff_len tokens; nothing is lost
  truncate,  ///< its first cutoff_len tokens, like LLaMA-Factory without packing
  whole,     ///< the whole text without bos, for cut_blocks() (encoded.h)
};

struct TemplateEncoderOptions {
  std::string folder;  ///< of the tokenizer's files
  /// A name of the table, or the path of a Jinja file (text::template_named). Required for conversations.
  /// nullopt: only plain text.
  std::optional<std::string> template_name;
  bool match_template = false;  ///< without a name: use the template that matches the folder's chat template
  text::TemplateOptions options;
  Answers answers = Answers::single;  ///< of samples
  TextCut text_cut = TextCut::pieces;
  std::int64_t most_pieces = 0;  ///< largest number of pieces of cutoff_len tokens per text; 0: no limit
  std::optional<bool> add_bos;   ///< plain text begins with bos; nullopt: from tokenizer_config.json
};

/// Converts a sample's turns, system text and tools to the input of a chat template.
text::Conversation conversation_of(const Sample& sample);

/// Encodes conversations with a chat template, and plain text like Hugging Face: the text and its end token,
/// with a leading bos if the tokenizer adds one. All tokens of plain text are trained. TextCut sets the cut.
class TemplateEncoder final : public Encoder {
 public:
  /// Reads the tokenizer and prepares it for the template. Throws Error for a missing or broken tokenizer,
  /// for an unknown template, and for options that exclude each other.
  explicit TemplateEncoder(const TemplateEncoderOptions& options);

  EncodedSample encode(const Sample& sample) const override;
  Recipe recipe() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::optional<text::ChatTemplate>& chat_template() const { return template_; }
  /// Returns the Jinja chat template for a folder with this tokenizer (text::jinja_of). Returns nullopt
  /// without a template, or if the folder's chat template already writes the same text. Also returns nullopt,
  /// and logs a warning, if the folder's chat template writes images, which the returned text cannot.
  std::optional<std::string> jinja_for(const std::string& folder) const;
  std::int32_t text_bos_id() const override;
  /// Ids that end an answer.
  std::vector<std::int32_t> stop_ids() const;

 private:
  EncodedSample encode_text(const std::string& text) const;
  EncodedSample encode_pair(const Sample& sample) const;
  EncodedSample encode_judged(const Sample& sample) const;
  void require_template() const;
  /// Throws Error if a template of the user cannot write a row.
  void require_written(text::Example::Outcome outcome, const std::string& reason) const;
  std::vector<text::TokenId> text_ids(const std::string& begin, const std::string& text) const;

  text::TemplateOptions options_;
  Answers answers_;
  TextCut text_cut_;
  std::int64_t most_pieces_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::string why_no_template_;
  std::string end_of_text_;
  std::string begin_of_text_;  ///< "" if the tokenizer adds none
};

}  // namespace octet::data
