// Steps that split words further without a change of their text.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "octet/base/json_fwd.h"
#include "tokenizer/component.h"
#include "tokenizer/pre_tokenizer.h"

namespace octet::text {

/// How a split treats matches: it drops matches, keeps them as words, joins them with the text before or
/// after them, or joins adjacent matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Reads the required "behavior". Throws Error for an unknown name.
SplitBehavior read_split_behavior(const Json& json, const std::string& where);

/// Splits at the matches of a pattern, or with `invert` at the text between matches.
std::unique_ptr<const PreTokenizerStep> make_split(Pattern pattern, SplitBehavior behavior,
                                                   bool invert = false);

/// Whitespace: keeps runs of word characters, and runs of other characters that are not white space.
std::unique_ptr<const PreTokenizerStep> make_word_split();

/// FixedLength: words of `length` characters. The last word may be shorter.
std::unique_ptr<const PreTokenizerStep> make_length_split(std::size_t length);

/// UnicodeScripts: splits between scripts. Hiragana, Katakana and Han count as one script. Blanks and
/// characters without a script stay with the text before them, and are dropped at the start of a word.
std::unique_ptr<const PreTokenizerStep> make_script_split();

}  // namespace octet::text
