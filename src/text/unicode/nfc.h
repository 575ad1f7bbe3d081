// Canonical composition (NFC) of Unicode 9. It records the source of each character.
#pragma once

#include <optional>
#include <string_view>

#include "tokenizer/aligned_text.h"

namespace octet::text {

/// Returns true if NFC certainly does not change `text`.
bool surely_nfc(std::string_view text);

/// Returns the NFC of `view`. The source of a composed character is its first source character.
AlignedText nfc(const TextView& view);

}  // namespace octet::text
