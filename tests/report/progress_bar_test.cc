// The progress bar in a file instead of a terminal: lines at a limited rate, and a line within a long step.
#include "../src/report/progress_bar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace octet::report::progress_bar_test {
namespace {

TEST(BarInAFile, FirstAndLastLinesAreDueAndOthersAtThePace) {
  testing::internal::CaptureStderr();
  for (const std::int64_t lines : {20, 21, 100}) {
    ProgressBar bar(0, 100, {.line = 3600, .lines = lines});
    bar.start();
    for (int step = 1; step < 100; ++step) {
      bar.advance(step, 0.1, 1);
      EXPECT_EQ(bar.line_is_due(), step == 1 || lines <= 20) << lines << " lines, step " << step;
    }
    bar.advance(100, 0.1, 0);
    EXPECT_TRUE(bar.line_is_due()) << lines;
    bar.finish();
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(BarInAFile, LinesOfALongRunKeepThePace) {
  using std::chrono::milliseconds;
  ProgressBar bar(0, 1000, {.line = 0.05, .lines = 1000});
  bar.start();
  const auto begin = std::chrono::steady_clock::now();
  int due = 0;
  for (int step = 1; step < 1000 && std::chrono::steady_clock::now() - begin < milliseconds(200); ++step) {
    bar.advance(step, 0.001, 1);
    due += bar.line_is_due() ? 1 : 0;
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  bar.finish();
  EXPECT_GE(due, 2);
  EXPECT_LE(due, 1 + passed.count() / 0.05);
}

TEST(BarInAFile, ALongStepPrintsThatTheRunLives) {
  testing::internal::CaptureStderr();
  ProgressBar bar(3, 10, {.life = 0.005, .line = 0.02});
  bar.start();
  bar.advance(4, 2, 12);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  bar.finish();
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find(" 4/10 ["), std::string::npos) << printed;
  EXPECT_NE(printed.find("<00:12, "), std::string::npos) << printed;
  EXPECT_EQ(printed.find('\r'), std::string::npos) << printed;
}

}  // namespace
}  // namespace octet::report::progress_bar_test
