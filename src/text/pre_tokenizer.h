// The `pre_tokenizer` of a tokenizer file: cuts text into the words within which merges happen.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "aligned_text.h"
#include "octet/base/json_fwd.h"

namespace octet::text {

/// Cuts each of `pieces` further; text that it must change goes to `made`, to which views then point.
class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void apply(std::vector<TextView>& pieces, std::deque<AlignedText>& made) const = 0;
};

struct PreTokenizer {
  std::vector<std::unique_ptr<const PreTokenizerStep>> steps;
  /// The last step is ByteLevel: words are merged from bytes instead of characters.
  bool byte_level = false;
};

/// An empty one for null. Throws Error naming an unknown component, or when something follows ByteLevel.
PreTokenizer make_pre_tokenizer(const Json& json, const std::string& where);

}  // namespace octet::text
