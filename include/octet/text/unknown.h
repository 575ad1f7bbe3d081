// How much of a text a vocabulary lacks.
#pragma once

#include <string_view>

#include "octet/text/tokenizer.h"

namespace octet::text {

/// Returns the share of the bytes of `text`, blanks left out, that vanish or become the unknown token: 0
/// to 1.
double unknown_share(const Tokenizer& tokenizer, std::string_view text);

}  // namespace octet::text
