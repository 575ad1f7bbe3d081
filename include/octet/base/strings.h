// Small words about text that several rooms need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

/// The candidate with the smallest edit distance to `word`, or "" when none is near: one edit in words of up
/// to four letters, two in longer ones, then a quarter of them. Neighbours exchanged are one edit.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

/// The candidates that begin with the letters of `word`, in any case: for "phi5", phi and phi_small. Empty
/// when `word` begins with fewer than two letters.
std::vector<std::string> names_of_family(std::string_view word, const std::vector<std::string>& candidates);

/// True when both words have the same digits in the same order: names with other digits are other versions.
bool same_digits(std::string_view a, std::string_view b);

/// "1.50 GiB", "12.0 MiB", "512 B".
std::string human_bytes(double bytes);
/// "1,234,567".
std::string with_commas(std::int64_t n);
/// "0:01:23" as tqdm and LLaMA-Factory print durations.
std::string clock_time(double seconds);
/// Pieces of `text` between `separator`s; empty pieces kept.
std::vector<std::string> split(std::string_view text, char separator);
/// `text` without blanks at both ends.
std::string_view trim(std::string_view text);
/// `text` with ASCII letters in lower case; other bytes stay.
std::string lower_case(std::string text);

/// True when `text` is well-formed UTF-8 (no surrogates, no overlong forms, at most U+10FFFF).
bool is_utf8(std::string_view text);

}  // namespace octet
