// The `post_processor` of a tokenizer file: tokens around the text, and offsets without blanks.
#pragma once

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

}  // namespace octet::text
