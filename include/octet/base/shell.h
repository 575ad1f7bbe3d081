// Words of Bourne shells.
#pragma once

#include <string>
#include <string_view>

namespace octet {

/// Returns a text in single quotes.
std::string quoted_for_shell(std::string_view text);
/// Returns a text as one word of a shell. Quotes it only if it needs quotes.
std::string shell_word(std::string_view text);

}  // namespace octet
