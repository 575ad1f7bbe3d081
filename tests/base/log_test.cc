// What reaches the file of a run's log.
#include "octet/base/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "octet/base/log_rows.h"
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
  const std::string screen = screen_of(folder.path(), [&] {
    warn(std::string(72, 'x'));  // "warning: " makes two rows of it
    debug("not for the screen");
    info("a line");
    info(std::to_string(rows_printed()));
  });
  EXPECT_TRUE(screen.ends_with("a line\n3\n")) << screen;
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
