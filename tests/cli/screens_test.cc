// The screen output of a run: piped, on terminals of 80 and 160 columns, under launch/mpirun, and in a Slurm
// log. Varying figures are replaced.
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <regex>

#include "cli/task.h"
#include "support/page.h"

namespace octet::test::screens_test {
namespace {

/// Returns the output of a command on a terminal with `columns` columns.
std::string on_terminal(const std::string& command, unsigned short columns) {
  winsize size{.ws_row = 40, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int fd = -1;
  const pid_t child = ::forkpty(&fd, nullptr, nullptr, &size);
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(fd);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << text;
  return text;
}

/// Returns the visible lines: a carriage return moves to the start of the line, and later text overwrites it.
std::vector<std::string> visible(const std::string& text) {
  std::vector<std::string> lines;
  for (std::string line : split(text, '\n')) {
    if (line.ends_with('\r')) line.pop_back();
    if (const std::size_t at = line.rfind('\r'); at != std::string::npos) line = line.substr(at + 1);
    for (std::size_t at; (at = line.find("\033[K")) != std::string::npos;) line.erase(at, 3);
    lines.push_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string without_figures(std::string line, const std::string& folder) {
  const std::pair<std::string, std::string> names[] = {{folder, "FOLDER"}, {OCTET_TRAINER, "TRAINER"}};
  for (const auto& [name, word] : names) {
    for (std::size_t at; (at = line.find(name)) != std::string::npos;) line.replace(at, name.size(), word);
  }
  static const std::pair<std::regex, const char*> kFigures[] = {
      {std::regex("CPU \\(.*\\)"), "CPU (NAME, THREADS)"},
      {std::regex("[0-9.]+ [KMG]iB per rank; the host has .*"), "BYTES per rank; the host has BYTES"},
      {std::regex("\\[[0-9:]+<.*\\]"), "[TIMES]"},
      {std::regex("'(loss|grad_norm)': [^,]*"), "'$1': NUMBER"},
      {std::regex("[0-9.e+-]+ s/it, [0-9:]+ left, .* tokens/s, .* TFLOP/s, memory .*"), "RATES"},
      {std::regex(
           "^(  (training loss|time|tokens|model TFLOP/s|waited for data|peak memory|communication)  *).*"),
       "$1FIGURES"},
      {std::regex("^(    [a-z_]+ +).* per step"), "$1FIGURES"},
      {std::regex("/runs/[A-Z][a-z]{2}[0-9]{2}_.*"), "/runs/DATE_HOST"}};
  for (const auto& [figure, word] : kFigures) line = std::regex_replace(line, figure, word);
  return line;
}

TEST(Screens, AreAsAPersonSeesThem) {
  const TemporaryFolder folder("screens");
  int run = 0;
  expect_page("cli/said/screens.txt", [&](const std::string& question) {
    const std::string output = folder / ("run" + std::to_string(++run));
    const bool ranks = question.find("launch/mpirun") != std::string::npos;
    const std::string command = std::string("env -u OCTETRUN_VERBOSE ") +
                                (ranks ? OCTET_SOURCE_DIR "/launch/mpirun -np 2 " : "") + OCTET_TRAINER +
                                " " + Task::get().config() + " output_dir=" + output +
                                " device=cpu max_steps=4 save_steps=4 plot_loss=false report_to=tensorboard";
    const std::size_t terminal = question.find("columns");
    const bool narrow = question.find(" 80 ") != std::string::npos;
    const std::string printed =
        terminal == std::string::npos ? shell(command).err : on_terminal(command, narrow ? 80 : 160);
    std::string screen;
    std::size_t before = 0;  // rows of 80 columns until the first step
    bool stepped = false;
    for (const std::string& line : visible(printed)) {
      if (line.starts_with("warning: the cores are shared")) continue;
      stepped = stepped || line.find("{'loss'") != std::string::npos || line.find("%|") != std::string::npos;
      if (!stepped) before += 1 + (line.size() - std::min<std::size_t>(line.size(), 1)) / 80;
      screen += without_figures(line, output) + "\n";
    }
    EXPECT_LE(before, 20u) << printed;
    EXPECT_TRUE(stepped) << printed;
    return screen;
  });
}

}  // namespace
}  // namespace octet::test::screens_test
