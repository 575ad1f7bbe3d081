// The 256 characters for bytes in GPT-2's byte-level vocabularies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::text {

/// The character of each byte: printable Latin-1 stands for itself, the rest is U+0100 and on.
const std::array<std::uint32_t, 256>& byte_alphabet();
/// `piece` as bytes, or nothing when a character of it is not in the alphabet.
std::optional<std::string> bytes_of_piece(std::string_view piece);
/// `bytes` in the alphabet.
std::string piece_of_bytes(std::string_view bytes);

}  // namespace octet::text
