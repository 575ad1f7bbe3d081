// A stroke font, so that plots need no fonts of the machine.
#pragma once

namespace octet::report {

/// The strokes of a printable ASCII character ('?' for others), encoded as font.cc says.
const char* glyph(char c);

/// Height of a capital in the font's units, and the y of the base line.
inline constexpr double kCapHeight = 21.0;
inline constexpr double kBaseLine = 9.0;

}  // namespace octet::report
