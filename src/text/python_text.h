// Methods of Python's str on UTF-8. Counts and places are in code points. Bytes that are not UTF-8 stay as
// they are and count as one code point each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text::python {

/// The 29 code points that str.strip() and str.split() take for blanks.
bool is_space(std::uint32_t code);

/// str.strip, lstrip and rstrip without an argument.
std::string_view strip(std::string_view text, bool left = true, bool right = true);
/// The same for the code points of `chars`.
std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right);

/// str.split, and str.rsplit with `from_right`. No separator: at runs of blanks. `most` below 0: at all.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t most, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);

/// str.isalpha and its kin; nothing for a name that is none of them.
std::optional<bool> is(std::string_view predicate, std::string_view text);

std::int64_t length(std::string_view text);
/// Code points [begin, end), as a slice takes them.
std::string_view slice(std::string_view text, std::int64_t begin, std::int64_t end);
/// Width in front (`left`), behind, or on both sides as str.center has it.
enum class Side { left, right, both };
std::string pad(std::string_view text, std::int64_t width, std::string_view fill, Side side);
std::string zero_fill(std::string_view text, std::int64_t width);
std::string expand_tabs(std::string_view text, std::int64_t size);

/// The text with every decimal digit of any script as 0 to 9, as int() and float() read it.
std::string ascii_digits(std::string_view text);

/// repr() of a str.
std::string repr(std::string_view text);

}  // namespace octet::text::python
