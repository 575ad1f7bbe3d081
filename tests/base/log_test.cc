// What reaches the file of a run's log.
#include "octet/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "support/program.h"

namespace octet::log::log_test {
namespace {

/// Runs `work` in a new process with an empty log. Returns the text that it wrote to the screen.
std::string screen_of(const std::string& folder, const std::function<void()>& work) {
  const std::string path = folder + "/screen";
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen(path.c_str(), "w", stderr) == nullptr) ::_exit(1);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return test::slurp(path);
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Log, TheFileHoldsEveryLineOfTheScreenOnceAlsoThoseBeforeIt) {
  const test::TemporaryFolder folder("log");
  ::unsetenv("OCTETRUN_VERBOSE");
  const std::string file = folder / "training.log";
  const std::string screen = screen_of(folder.path(), [&] {
    info("device: one");
    warn("a row is dropped");
    error("two\n  lines");
    debug("not for the screen");
    open_file(file);
    info("a step");
    constexpr std::string_view stop = "\nstopping\n";
    write_from_handler(stop.data(), stop.size());
    open_file(file);  // a run that goes back opens it again
    warn("a second warning");
  });
  const std::string kept = test::slurp(file);
  for (const char* line : {"device: one", "warning: a row is dropped", "error: two", "  lines", "a step",
                           "stopping", "warning: a second warning"}) {
    EXPECT_EQ(count(screen, line), 1) << line << "\n" << screen;
    EXPECT_EQ(count(kept, line), 1) << line << "\n" << kept;
  }
  EXPECT_EQ(count(screen, "not for the screen"), 0);
  EXPECT_EQ(count(kept, "not for the screen"), 1);
  EXPECT_LT(kept.find("device: one"), kept.find("a row is dropped")) << "in the order of the screen";
  ::setenv("OCTETRUN_VERBOSE", "1", 1);
  EXPECT_EQ(count(screen_of(folder.path(), [&] { debug("for the screen too"); }), "for the screen too"), 1);
}

TEST(Log, CountsTheRowsOfTheScreen) {
  const test::TemporaryFolder folder("log");
  ::unsetenv("OCTETRUN_VERBOSE");
  EXPECT_EQ(rows_of(""), 1);
  EXPECT_EQ(rows_of(std::string(80, 'x')), 1);
  EXPECT_EQ(rows_of(std::string(81, 'x')), 2);
  std::string bar;
  for (int i = 0; i < 80; ++i) bar += "\u2588";
  EXPECT_EQ(rows_of(bar), 1);
  EXPECT_EQ(rows_of("two\nlines"), 2);
  EXPECT_EQ(rows_of(std::string(81, 'x') + "\n\n"), 4);
  const std::string screen = screen_of(folder.path(), [&] {
    warn(std::string(72, 'x'));  // "warning: " makes two rows of it
    debug("not for the screen");
    info("a line");
  });
  EXPECT_TRUE(screen.ends_with("x\na line\n")) << screen;
}

// The rows of a screen of 80 columns.
int rows(const std::string& screen) {
  return rows_of(screen.substr(0, screen.size() - 1));
}

TEST(Log, TheStartOfARunHasTheMostImportantMessagesAndCountsTheOthers) {
  const test::TemporaryFolder folder("log");
  ::unsetenv("OCTETRUN_VERBOSE");
  const std::string file = folder / "training.log";
  const auto start = [&](
                         int warnings, int table, const std::function<void()>& after = [] {}) {
    return screen_of(folder.path(), [&] {
      const StartScreen screen(20);
      info("waits.", Importance::waiting);
      for (int i = 0; i < 5; ++i) info("note " + std::to_string(i) + ".");
      for (int i = 0; i < warnings; ++i) warn("setting " + std::to_string(i) + ".", Importance::setting);
      for (int i = 0; i < warnings; ++i) warn("fault " + std::to_string(i) + ".");
      warn("trains something else.", Importance::training);
      open_file(file);
      begin_table(table);
      for (int i = 0; i < table; ++i) info("row of the table");
      after();
      end_start();
      info("a step");
    });
  };
  for (const int table : {10, 13, 15}) {
    test::spill(file, "");
    const std::string screen = start(30, table);
    EXPECT_LE(rows(screen), 21) << "with the step\n" << screen;
    EXPECT_EQ(count(screen, "row of the table"), table);
    EXPECT_EQ(count(screen, "warning: trains something else."), 1) << screen;
    EXPECT_EQ(count(screen, "waits."), 1);
    EXPECT_EQ(count(screen, "setting"), 0) << "faults are more important\n" << screen;
    EXPECT_EQ(count(screen, "note 0"), 0);
    const int faults = count(screen, "warning: fault");
    EXPECT_GE(faults, 2);
    EXPECT_EQ(
        count(screen, std::to_string(60 - faults) +
                          " more warnings, 5 more notes: read training.log, or type trainer lint CONFIG"),
        1)
        << screen;
    const std::string kept = test::slurp(file);
    for (int i = 0; i < 30; ++i) {
      EXPECT_EQ(count(kept, "warning: setting " + std::to_string(i) + "."), 1);
      EXPECT_EQ(count(kept, "warning: fault " + std::to_string(i) + "."), 1);
    }
  }
  // All messages fit: none is left out, and nothing is counted.
  const std::string few = start(1, 11);
  for (const char* line : {"note 4.", "warning: setting 0.", "warning: fault 0.", "trains something else."})
    EXPECT_EQ(count(few, line), 1) << few;
  EXPECT_EQ(count(few, " more "), 0) << few;
  EXPECT_EQ(rows(few), 21) << "the screen and the step";
  // Warnings after the table fill the rest of the screen.
  const std::string late = start(0, 11, [] {
    for (int i = 0; i < 5; ++i) warn("late " + std::to_string(i));
  });
  EXPECT_EQ(count(late, "warning: late"), 1) << late;
  EXPECT_EQ(count(late, "4 more warnings: read training.log"), 1) << late;
}

TEST(Log, ErrorsEndTheLimitOfTheStart) {
  const test::TemporaryFolder folder("log");
  ::unsetenv("OCTETRUN_VERBOSE");
  const std::string screen = screen_of(folder.path(), [&] {
    const StartScreen start(20);
    warn("a doubt", Importance::setting);
    error("one\n  two");
    for (int i = 0; i < 30; ++i) error("error " + std::to_string(i));
    warn("afterwards", Importance::setting);
  });
  EXPECT_LT(screen.find("warning: a doubt"), screen.find("error: one\n  two")) << screen;
  EXPECT_EQ(count(screen, "error: "), 31) << screen;
  EXPECT_EQ(count(screen, "warning: afterwards"), 1) << screen;
  // A run that ends before its table has its messages on the screen.
  const std::string ended = screen_of(folder.path(), [&] {
    const StartScreen start(20);
    warn("a doubt", Importance::setting);
    info("a note");
  });
  EXPECT_EQ(ended, "warning: a doubt\na note\n");
  // One message that is longer than the room is cut, and counted.
  const std::string cut = screen_of(folder.path(), [&] {
    const StartScreen start(20);
    warn(std::string(800, 'x') + "end", Importance::training);
    begin_table(15);
  });
  EXPECT_EQ(rows(cut), 5) << cut;
  EXPECT_EQ(count(cut, "…\n1 more warning: read training.log"), 1) << cut;
  ::setenv("OCTETRUN_VERBOSE", "1", 1);
  const std::string all = screen_of(folder.path(), [&] {
    const StartScreen start(20);
    for (int i = 0; i < 40; ++i) info("note");
    begin_table(0);
  });
  EXPECT_EQ(count(all, "note"), 40);
  ::unsetenv("OCTETRUN_VERBOSE");
}

TEST(Log, TheErrorOfARankThatDoesNotPrintReachesTheFileOfTheRankThatDoes) {
  const test::TemporaryFolder folder("log");
  const std::string file = folder / "training.log";
  test::spill(file, "of the printing rank\n");
  for (const std::string& path : {file, folder / "none/training.log"}) {
    screen_of(folder.path(), [&] {
      set_rank(1, false);
      open_file_for_errors(path);
      info("silent");
      error("of rank 1");
    });
  }
  EXPECT_EQ(test::slurp(file).find("of the printing rank\n"), 0u);
  EXPECT_EQ(count(test::slurp(file), "error: of rank 1\n"), 1) << test::slurp(file);
  EXPECT_EQ(count(test::slurp(file), "silent"), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
}

}  // namespace
}  // namespace octet::log::log_test
