// The `post_processor` of a tokenizer file: tokens around the text, and offsets without blanks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/text/tokenizer.h"

namespace octet::text {

struct PostProcessor {
  /// One ByteLevel step: blanks at the ends of a token are taken off its range.
  struct Trim {
    bool enabled = false;
    bool add_prefix_space = false;
  };
  std::vector<TokenId> before, after;  ///< special tokens around the text
  Trim trim;
};

/// An empty one for null. Throws Error naming an unknown component.
PostProcessor make_post_processor(const Json& json, const std::string& where);

/// Trims `offsets` of the pieces `pieces` over `text` as the reference does: counted in characters.
void trim_offsets(const PostProcessor::Trim& trim, std::string_view text,
                  const std::vector<std::string_view>& pieces, std::vector<Span>& offsets);

}  // namespace octet::text
