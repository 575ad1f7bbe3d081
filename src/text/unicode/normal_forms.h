// Normal forms of Unicode, with the tables of Unicode 9 and the source of each character.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "unicode/utf8.h"

namespace octet::text {

/// The forms with a `k` also replace compatible characters: "ﬁ" becomes "fi", and "²" becomes "2".
enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Returns true if the form certainly does not change `text`.
bool surely_normal(NormalForm form, std::string_view text);

/// Returns the normal form of `view`. The source of a composed character is its first source character.
/// Parts of a decomposed character have the source of the character.
AlignedText normal(NormalForm form, const TextView& view);

/// Calls `use` with each character that NFKD and NFD decompose differently, and with its decomposition in
/// NFKD.
void each_compatible(const std::function<void(std::uint32_t, std::u32string_view)>& use);

}  // namespace octet::text
