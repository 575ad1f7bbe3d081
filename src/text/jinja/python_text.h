// Methods of Python's str for UTF-8. Counts and places are in code points. Bytes that are not UTF-8 are kept
// and count as one code point each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text::python {

/// Whether a code point is one of the 29 blanks of str.strip() and str.split().
bool is_space(std::uint32_t code);

/// str.strip, lstrip and rstrip without an argument.
std::string_view strip(std::string_view text, bool left = true, bool right = true);
/// str.strip, lstrip and rstrip with the argument `chars`.
std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right);

/// str.split, or str.rsplit with `from_right`. Without a separator, splits at runs of blanks. `most`: largest
/// number of splits; below 0: no limit.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t most, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);

/// str.isalpha, str.isdigit, … by name. Returns nullopt for an unknown name.
std::optional<bool> is(std::string_view predicate, std::string_view text);

std::int64_t length(std::string_view text);
/// Returns code points [begin, end) with the rules of Python's slices.
std::string_view slice(std::string_view text, std::int64_t begin, std::int64_t end);
/// Pads to `width` on the left, on the right, or on both sides like str.center.
enum class Side { left, right, both };
std::string pad(std::string_view text, std::int64_t width, std::string_view fill, Side side);
std::string zero_fill(std::string_view text, std::int64_t width);
std::string expand_tabs(std::string_view text, std::int64_t size);

/// Replaces decimal digits of all scripts by 0 to 9, like int() and float().
std::string ascii_digits(std::string_view text);

/// repr() of a str.
std::string repr(std::string_view text);

}  // namespace octet::text::python
