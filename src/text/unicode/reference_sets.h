// Sets of characters and lower case, as in the reference implementation of tokenizer files. Its parts have
// different versions of Unicode.
#pragma once

#include <string>
#include <string_view>

#include "unicode/unicode.h"

namespace octet::text {

/// The combining marks of Unicode 9, which StripAccents removes.
Ranges combining_marks();

/// The signs of ASCII and the punctuation of Unicode 8, at which Punctuation splits.
Ranges punctuation();

/// Returns one character in lower case of Unicode 16. A final sigma has the form of other sigmas.
std::string lower_character(std::string_view character);

}  // namespace octet::text
