#include "tokenizer/byte_alphabet.h"

#include "unicode/utf8.h"

namespace octet::text {

const std::array<std::uint32_t, 256>& byte_alphabet() {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> out{};
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = itself ? b : next++;
    }
    return out;
  }();
  return table;
}

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  static const std::array<int, 512> back = [] {
    std::array<int, 512> out;
    out.fill(-1);
    for (int b = 0; b < 256; ++b) out[byte_alphabet()[static_cast<std::size_t>(b)]] = b;
    return out;
  }();
  std::string out;
  for (std::size_t i = 0; i < piece.size();) {
    const std::uint32_t code = utf8_at(piece.data() + i);
    if (code >= back.size() || back[code] < 0) return std::nullopt;
    out += static_cast<char>(back[code]);
    i += utf8_length(static_cast<unsigned char>(piece[i]));
  }
  return out;
}

std::string piece_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) utf8_append(out, byte_alphabet()[static_cast<unsigned char>(c)]);
  return out;
}

}  // namespace octet::text
