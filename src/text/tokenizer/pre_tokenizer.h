// The `pre_tokenizer` of a tokenizer file: the steps from a normalised text to words.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "unicode/utf8.h"

namespace octet::text {

/// Splits each of `pieces` further. Changed text is stored in `made`, and the views point there.
class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void apply(std::vector<TextView>& pieces, std::deque<AlignedText>& made) const = 0;
};

struct PreTokenizer {
  std::vector<std::unique_ptr<const PreTokenizerStep>> steps;
  /// The last step is ByteLevel: merges work on bytes, not on characters.
  bool byte_level = false;
};

/// Reads a pre-tokenizer; returns an empty one for null. Throws Error that names an unknown component, or if
/// a step follows ByteLevel.
PreTokenizer make_pre_tokenizer(const Json& json, const std::string& where);

}  // namespace octet::text
