// The screen output of a run: piped, on terminals of 80 and 160 columns, under launch/mpirun, and in a Slurm
// log. Varying figures are replaced.
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <regex>

#include "cli/task.h"
#include "octet/base/log.h"
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
      {std::regex(", at least [0-9:]+ on this CPU"), ""},  // of a slow machine
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

/// Returns the rows of 80 columns before the first step.
int rows_before_step(const std::string& screen) {
  const std::size_t end = std::min(screen.find("{'loss'"), screen.size());
  return end == 0 ? 0 : log::rows_of(screen.substr(0, end - 1));
}

int lines_with(const std::string& text, const std::string& part) {
  const std::vector<std::string> lines = split(text, '\n');
  return static_cast<int>(
      std::ranges::count_if(lines, [&](const std::string& line) { return line.find(part) != line.npos; }));
}

TEST(Screens, OfARunWithThirtyWarningsHaveTwentyRowsAndItsLogHasAll) {
  const TemporaryFolder folder("warnings");
  const std::string row = R"({"messages": [{"role": "user", "content": "a"}, )"
                          R"({"role": "assistant", "content": "b"}], "note": "a text"})";
  std::string files;
  constexpr int kFiles = 30;
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = folder / ("f" + std::to_string(i) + ".jsonl");
    spill(name, row + "\n" + (i == 0 ? "{\"messages\": 7}\n" : ""));
    files += (i == 0 ? "" : ",") + name;
  }
  const std::string program = "env -u OCTETRUN_VERBOSE " OCTET_TRAINER " ";
  const std::string run = folder / "run";
  const Outcome trained = shell(
      program + Task::get().train(run, "device=cpu max_steps=2 plot_loss=false global_batch_size=4 dataset=" +
                                           files + " eval_dataset=" + files + " eval_strategy=steps"));
  ASSERT_EQ(trained.code, 0) << trained.both();
  EXPECT_LE(rows_before_step(trained.err), 20) << trained.err;
  EXPECT_EQ(lines_with(trained.err, "training data: 1 rows were left out because they are not usable"), 1)
      << "it changes what is trained\n"
      << trained.err;
  EXPECT_TRUE(std::regex_search(
      trained.err,
      std::regex(
          "\n[0-9]+ more warnings, [0-9]+ more notes: read training.log, or type trainer lint CONFIG\n")))
      << trained.err;
  const std::string log = slurp(run + "/training.log");
  EXPECT_GE(lines_with(log, "warning: "), kFiles + 1);
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = "eval_dataset names '" + (folder / ("f" + std::to_string(i) + ".jsonl")) + "'";
    EXPECT_EQ(lines_with(log, name), 1) << name;
  }
  EXPECT_LT(lines_with(trained.err, "eval_dataset names"), 5) << trained.err;
  // An error is on the screen, after warnings.
  spill(folder / "unusable.jsonl", "{\"messages\": 7}\n");
  const Outcome refused = shell(program + Task::get().train(run + "2", "device=cpu learning_rate=0 dataset=" +
                                                                           (folder / "unusable.jsonl")));
  EXPECT_NE(refused.code, 0);
  EXPECT_EQ(lines_with(refused.err, "error: "), 1) << refused.err;
  EXPECT_LT(refused.err.find("learning_rate is 0"), refused.err.find("error: ")) << refused.err;
}

}  // namespace
}  // namespace octet::test::screens_test
