#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/data/encode.h"
#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::data {

/// What becomes of a plain text.
enum class TextCut {
  pieces,    ///< documents of cutoff_len tokens; nothing is lost
  truncate,  ///< its first cutoff_len tokens, as LLaMA-Factory without packing
  whole,     ///< all of it and no bos, for cut_blocks (packing.h)
};

struct TemplateEncoderOptions {
  std::string folder;  ///< of the tokenizer's files
  /// Of the table, or the path of a file in Jinja (text::template_named). Needed for conversations; nothing:
  /// plain text only.
  std::optional<std::string> template_name;
  bool match_template = false;  ///< without a name: the one that writes as the folder's own chat template
  text::TemplateOptions options;
  TextCut text_cut = TextCut::pieces;
  std::int64_t most_pieces = 0;  ///< of a text, each of cutoff_len tokens; the rest is cut off; 0: all of it
  std::optional<bool> add_bos;   ///< plain text begins with bos; nothing: as tokenizer_config.json says
};

/// A sample's turns, system text and tools as a chat template takes them.
text::Conversation conversation_of(const Sample& sample);

/// Conversations by a chat template; plain text as Hugging Face trains it: the text with its end token behind
/// (and bos in front where the tokenizer adds one), all of it trained, cut as TextCut says.
class TemplateEncoder final : public Encoder {
 public:
  /// Reads the tokenizer and prepares it for the template. Throws Error for a missing or broken tokenizer, an
  /// unknown template, options that exclude each other.
  explicit TemplateEncoder(const TemplateEncoderOptions& options);

  EncodedSample encode(const Sample& sample) const override;
  Recipe recipe() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::optional<text::ChatTemplate>& chat_template() const { return template_; }
  /// The chat template in Jinja that a folder with this tokenizer needs (text::jinja_of). Nothing without a
  /// template, and where the folder's own writes the same.
  std::optional<std::string> jinja_for(const std::string& folder) const;
  std::int32_t text_bos_id() const override;
  /// Ids that end an answer.
  std::vector<std::int32_t> stop_ids() const;

 private:
  EncodedSample encode_text(const std::string& text) const;
  std::vector<text::TokenId> text_ids(const std::string& begin, const std::string& text) const;

  text::TemplateOptions options_;
  TextCut text_cut_;
  std::int64_t most_pieces_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::string why_no_template_;
  std::string end_of_text_;
  std::string begin_of_text_;  ///< "" when the tokenizer adds none
};

}  // namespace octet::data
