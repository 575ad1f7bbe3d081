// Pipes, devices and folders are refused at once, and control characters in names do not reach a terminal.
#include "octet/base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/terminal.h"
#include "support/temporary_folder.h"

namespace octet::files_test {
namespace {

TEST(Files, APipeThatNobodyWritesToAndADeviceWithoutEndAreRefused) {
  const auto start = std::chrono::steady_clock::now();
  const test::TemporaryFolder folder("pipe");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(MappedFile{pipe}, Error);
  EXPECT_THROW(read_regular_file(pipe, 100), Error);
  EXPECT_THROW(read_file(pipe), Error);
  EXPECT_THROW(read_file("/dev/zero"), Error);
  EXPECT_EQ(read_file("/dev/null"), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Files, WhatAPipeGivesIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "text", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(read_file("/proc/self/fd/" + std::to_string(ends[0])), "text");
  ::close(ends[0]);
}

TEST(Printable, ControlCharactersAreShownAndNotObeyed) {
  EXPECT_EQ(printable("a\033[31mred\a\r\b\x7f"), "a\\x1B[31mred\\x07\\x0D\\x08\\x7F");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\x9B"
            "2J");
  const std::string text = "lines\n\tand Größe, 例\xC2\xA0";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("\xC2"), "\xC2");
}

}  // namespace
}  // namespace octet::files_test
