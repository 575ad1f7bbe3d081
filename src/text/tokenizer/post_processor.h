// The `post_processor` and the `decoder` of a tokenizer file: tokens around a text, and the way back from
// pieces to text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/text/tokenizer.h"

namespace octet::text {

struct PostProcessor {
  /// One ByteLevel step. It removes blanks at the ends of a token from the token's range.
  struct Trim {
    bool enabled = false;
    bool add_prefix_space = false;
  };
  std::vector<TokenId> before, after;  ///< special tokens around the text
  Trim trim;
};

/// Reads a post-processor; returns an empty one for null. Throws Error that names an unknown component.
PostProcessor make_post_processor(const Json& json, const std::string& where);

/// Trims the `offsets` of `pieces` in `text`. Like the reference, it counts characters.
void trim_offsets(const PostProcessor::Trim& trim, std::string_view text,
                  const std::vector<std::string_view>& pieces, std::vector<Span>& offsets);

// The `decoder` of a tokenizer file. It converts pieces to text.

/// One step of decoding, on the list of pieces.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& pieces) const = 0;
};

struct PieceDecoder {
  std::vector<std::unique_ptr<const DecoderStep>> steps;
  /// The only step is ByteLevel: pieces are bytes, and the concatenated bytes are UTF-8.
  bool byte_level = false;
  /// No decoder: pieces are joined by blanks.
  bool none = false;
};

/// Reads a decoder. Throws Error that names an unknown component.
PieceDecoder make_decoder(const Json& json, const std::string& where);

}  // namespace octet::text
