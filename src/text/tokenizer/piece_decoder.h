// The `decoder` of a tokenizer file. It converts pieces to text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"

namespace octet::text {

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
