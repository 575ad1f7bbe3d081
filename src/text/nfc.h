// Canonical composition (NFC) as of Unicode 9, with the source of each character.
#pragma once

#include <optional>
#include <string_view>

#include "aligned_text.h"

namespace octet::text {

/// True when NFC certainly leaves `text` as it is.
bool surely_nfc(std::string_view text);

/// The NFC of `view`. A composed character stands for the first of the characters it was made of.
AlignedText nfc(const TextView& view);

}  // namespace octet::text
