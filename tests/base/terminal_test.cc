// What reaches a terminal, and what reaches files and pipes.
#include "octet/base/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <vector>

namespace octet::terminal_test {
namespace {

struct Pieces {
  const char* name;
  std::vector<std::string> pieces;
  std::string shown;
};

const std::vector<Pieces>& pieces() {
  static const std::vector<Pieces> all{
      {"plain text", {"a", "b\tc\n"}, "ab\tc\n"},
      {"text of all scripts", {"Zürich ", "日本語 🙂"}, "Zürich 日本語 🙂"},
      {"a character cut in two", {"Z\xC3", "\xBCrich \xC2", "\xB0"}, "Zürich °"},
      {"a colour", {"\x1b[31mred"}, "\\x1B[31mred"},
      {"a title of the window and a bell", {"\x1b]0;owned\x07"}, "\\x1B]0;owned\\x07"},
      {"a return and a backspace", {"good\rbad\b"}, "good\\x0Dbad\\x08"},
      {"delete", {"\x7f"}, "\\x7F"},
      {"a control character of two bytes",
       {"\xC2\x9B"
        "31m"},
       "\\x9B31m"},
      {"the same cut in two",
       {"\xC2",
        "\x9B"
        "31m"},
       "\\x9B31m"},
      {"an escape sequence over three pieces", {"\x1b", "[", "2J"}, "\\x1B[2J"},
  };
  return all;
}

TEST(Terminal, GetsNoControlCharacters) {
  for (const Pieces& one : pieces()) {
    PrintablePieces printable;
    std::string shown;
    for (const std::string& piece : one.pieces) shown += printable.take(piece);
    EXPECT_EQ(shown, one.shown) << one.name;
  }
}

TEST(Terminal, StreamsWriteTheSameAsPieces) {
  for (const Pieces& one : pieces()) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    std::FILE* stream = printable_stream(ends[1]);
    ASSERT_NE(stream, nullptr);
    for (const std::string& piece : one.pieces) {
      EXPECT_EQ(std::fwrite(piece.data(), 1, piece.size(), stream), piece.size());
      std::fflush(stream);
    }
    std::fclose(stream);
    ::close(ends[1]);
    std::string shown;
    std::array<char, 256> buffer{};
    for (ssize_t n = 0; (n = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
      shown.append(buffer.data(), static_cast<std::size_t>(n));
    ::close(ends[0]);
    EXPECT_EQ(shown, one.shown) << one.name;
  }
}

// Standard output of a process in turn: a pipe, and the end of a terminal.
TEST(Terminal, IsKnownFromAPipe) {
  const int saved = ::dup(STDOUT_FILENO);
  std::fflush(stdout);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::dup2(ends[1], STDOUT_FILENO);
  const bool pipe_is_terminal = output_is_terminal(0);
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  bool screen = false, own_parent = false, gone_parent = true;
  if (master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0) {
    const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    ::dup2(slave, STDOUT_FILENO);
    screen = output_is_terminal(0);
    own_parent = output_is_terminal(::getpid());
    gone_parent = output_is_terminal(1 << 30);
    ::close(slave);
  }
  ::dup2(saved, STDOUT_FILENO);
  ::close(saved), ::close(ends[0]), ::close(ends[1]);
  EXPECT_FALSE(pipe_is_terminal);
  if (master < 0) GTEST_SKIP() << "there are no pseudo-terminals here";
  ::close(master);
  EXPECT_TRUE(screen);
  EXPECT_TRUE(own_parent) << "a launcher whose output is a terminal";
  EXPECT_FALSE(gone_parent) << "a launcher that tells nothing";
}

}  // namespace
}  // namespace octet::terminal_test
