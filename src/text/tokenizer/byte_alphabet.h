// The 256 characters for bytes in GPT-2's byte-level vocabularies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::text {

/// Returns the character of each byte. Printable Latin-1 maps to itself; other bytes map to U+0100 and above.
const std::array<std::uint32_t, 256>& byte_alphabet();
/// Returns `piece` as bytes, or nothing if one of its characters is not in the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);
/// Returns `bytes` written in the alphabet.
std::string piece_of_bytes(std::string_view bytes);

}  // namespace octet::text
