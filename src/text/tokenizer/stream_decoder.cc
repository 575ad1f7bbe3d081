#include "octet/text/tokenizer.h"
#include "tokenizer/tokenizer_parts.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

/// Whether a piece is <0xNN>. Only the end of a run of such pieces shows whether they form characters.
bool is_byte_piece(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>';
}

}  // namespace

std::string StreamDecoder::push(TokenId id) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  const std::string* piece = parts.piece(id);
  if (!piece || (skip_special_ && parts.added.is_special(*piece))) return "";
  if (parts.pipeline->decoder.byte_level) {
    held_ += parts.decoded[static_cast<std::size_t>(id)];
    std::string out;
    std::string_view rest = held_;
    while (!rest.empty()) {
      const Utf8Step step = utf8_step(rest);
      if (step.truncated) break;
      out += step.valid ? rest.substr(0, step.size) : std::string_view("\xEF\xBF\xBD");
      rest.remove_prefix(step.size);
    }
    held_ = std::string(rest);
    return out;
  }
  pending_.push_back(id);
  if (is_byte_piece(*piece)) return "";
  const std::string text = tokenizer_.decode(pending_);
  std::string out = text.substr(std::min(emitted_, text.size()));
  // One piece with text stays as context, because the first piece of a text is decoded differently.
  const std::string alone = tokenizer_.decode({&id, 1});
  if (alone.empty()) {
    emitted_ = text.size();
  } else {
    pending_ = {id};
    emitted_ = alone.size();
  }
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  if (tokenizer_.parts_->pipeline->decoder.byte_level) {
    out = utf8_lossy(held_);
  } else {
    const std::string text = tokenizer_.decode(pending_);
    out = text.substr(std::min(emitted_, text.size()));
  }
  held_.clear();
  pending_.clear();
  emitted_ = 0;
  return out;
}

}  // namespace octet::text
