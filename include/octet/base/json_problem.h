// Messages of a JSON parser in plain words.
#pragma once

#include <string>
#include <string_view>

namespace octet {

/// Returns the place and the reason of the parser's message: "column 8: invalid literal; last read: '"a":n'".
std::string json_problem(std::string_view message);

}  // namespace octet
