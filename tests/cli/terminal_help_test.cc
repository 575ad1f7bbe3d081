// Help on terminals of several widths.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "octet/base/strings.h"
#include "support/program.h"

namespace octet::test::terminal_help_test {
namespace {

/// Returns the program's output on a terminal with `columns` columns.
std::string on_terminal(unsigned short columns, const std::vector<std::string>& arguments) {
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int master = -1;
  const pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), OCTET_TRAINER);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execv(OCTET_TRAINER, pointers.data());
    ::_exit(127);
  }
  std::string text;
  char bytes[4096];
  for (ssize_t n; (n = ::read(master, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<std::size_t>(n));
  ::close(master);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  std::erase(text, '\r');
  return text;
}

std::size_t columns_of(const std::string& line) {
  return static_cast<std::size_t>(
      std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Returns the words without blanks, line ends and the backslashes that join command lines.
std::string words_of(const std::string& text) {
  std::string words;
  for (const char c : text) {
    if (c != ' ' && c != '\n' && c != '\\') words += c;
  }
  return words;
}

TEST(TerminalHelp, FitsTerminalsFromFortyColumnsOn) {
  std::vector<std::vector<std::string>> calls{
      {"--help"}, {"train", "--help"}, {"--help", "learning_rate"}, {"--help", "fp8_fallback"}};
  for (const char* command : {"encode", "probe", "inspect", "export", "generate", "plan", "lint", "verify",
                              "compare", "bench", "gpu-info", "schema", "quickstart", "supervise"}) {
    calls.push_back({command, "--help"});
  }
  for (const auto& call : calls) {
    const std::string wide = on_terminal(120, call);
    for (const unsigned short columns : {40, 50, 76, 100}) {
      SCOPED_TRACE(call.front() + " " + (call.size() > 1 ? call[1] : "") + " at " + std::to_string(columns));
      const std::string text = on_terminal(columns, call);
      for (const std::string& line : split(text, '\n')) EXPECT_LE(columns_of(line), columns) << line;
      EXPECT_EQ(words_of(text), words_of(wide)) << "no word is lost";
    }
  }
}

TEST(TerminalHelp, PutsWordsBesideOptionsWhereThereIsRoom) {
  const std::string wide = on_terminal(100, {"plan", "--help"}), narrow = on_terminal(50, {"plan", "--help"});
  EXPECT_NE(wide.find("  -h, --help              print this and exit\n"), std::string::npos) << wide;
  EXPECT_NE(narrow.find("  -h, --help\n      print this and exit\n"), std::string::npos) << narrow;
  // A shell reads a wrapped example as one line.
  EXPECT_NE(on_terminal(40, {"train", "--help"}).find(" \\\n    "), std::string::npos);
}

}  // namespace
}  // namespace octet::test::terminal_help_test
