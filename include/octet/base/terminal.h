// Standard output on a terminal: text of a model or a file moves no cursor and sets no colour there.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace octet {

/// printable() of a text that comes in pieces. A character of two bytes may be cut between two pieces.
class PrintablePieces {
 public:
  /// What may be written after this piece.
  std::string take(std::string_view piece);

 private:
  bool held_ = false;  ///< the first byte of a character that may be a control character
};

/// Whether standard output is a terminal. mpirun gives each rank a new terminal, whatever its own output is.
/// For a rank, `parent` is the process number of mpirun, and the output of mpirun decides. 0: no launcher.
bool output_is_terminal(int parent = 0);

/// A stream that writes to the file descriptor `fd` what PrintablePieces gives. Null if the system refuses.
std::FILE* printable_stream(int fd);

/// After this call, standard output (std::printf and its like) passes through printable_stream(). Call it
/// once, before the first output, if the output reaches a terminal. Files and pipes keep every byte.
void protect_terminal();

/// Returns text that is safe for a terminal: control characters except tabs and line ends (escape sequences,
/// bells, backspaces, returns) become \x1B and the like. So a name from a file moves no cursor and sets no
/// colour.
inline std::string printable(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters, too, in UTF-8 two bytes.
    const bool wide =
        c == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if ((c >= 0x20 && c != 0x7F && !wide) || c == '\n' || c == '\t') {
      out += text[i];
      continue;
    }
    const auto shown = wide ? static_cast<unsigned char>(text[++i]) : c;
    out += "\\x";
    out += kDigits[shown >> 4];
    out += kDigits[shown & 15];
  }
  return out;
}

/// printable() of a text that is one line: line ends become \x0A.
inline std::string printable_line(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\n') {
      out += "\\x0A";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace octet
