// Row files that would take unbounded time or memory are refused quickly, with a location.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "support/temporary_folder.h"

namespace octet::data::hostile_rows_test {
namespace {

class HostileRows : public testing::Test {
 protected:
  // CPU time of this process: a busy machine takes longer in wall time.
  ~HostileRows() override { EXPECT_LT(std::clock() - start_, 15 * CLOCKS_PER_SEC); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  // Returns the error of opening a file and reading its first row.
  static std::string refusal(const std::string& file) {
    try {
      const auto rows = open_rows(file);
      if (rows->size() > 0) rows->row(0);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  static bool says(const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  }

 private:
  octet::test::TemporaryFolder scratch_{"hostile"};
  const std::string& folder_ = scratch_.path();
  std::clock_t start_ = std::clock();
};

TEST_F(HostileRows, ARowHasAGreatestLength) {
  const std::string long_text(17 << 20, 'a');
  EXPECT_TRUE(says(refusal(write("long.jsonl", "{\"text\": \"" + long_text + "\"}\n")), "a row is too long"));
  EXPECT_TRUE(says(refusal(write("long.txt", long_text)), "a row is too long"));
  EXPECT_TRUE(says(refusal(write("long.json", "[{\"text\": \"" + long_text + "\"}]")), "a row is too long"));
  EXPECT_TRUE(says(refusal(write("long.csv", "text\n" + long_text + "\n")), "a row is too long"));
  EXPECT_EQ(refusal(write("less.txt", std::string(15 << 20, 'a'))), "");
}

TEST_F(HostileRows, ALineThatInflatesWithoutEndIsNotUnpacked) {
  const std::string name = path("bomb.jsonl.gz");
  const gzFile file = ::gzopen(name.c_str(), "wb");
  const std::string blanks(1 << 20, ' ');
  for (int i = 0; i < 600; ++i) ::gzwrite(file, blanks.data(), static_cast<unsigned>(blanks.size()));
  ::gzclose(file);
  EXPECT_TRUE(says(refusal(name), "rows that are too long"));
  std::filesystem::copy(name, path("bomb.json.gz"));
  EXPECT_TRUE(says(refusal(path("bomb.json.gz")), "rows that are too long"));
}

TEST_F(HostileRows, BlankLinesEnd) {
  EXPECT_TRUE(
      says(refusal(write("blank.txt", std::string(2 << 20, '\n') + "text\n")), "too many blank lines"));
  EXPECT_EQ(refusal(write("few.txt", std::string(1000, '\n') + "text\n")), "");
}

TEST_F(HostileRows, ATableHasAGreatestNumberOfColumns) {
  std::string names = "a";
  for (int i = 0; i < 1000000; ++i) names += ",c" + std::to_string(i);
  EXPECT_TRUE(says(refusal(write("wide.csv", names + "\n" + names + "\n")), "too many cells"));
}

TEST_F(HostileRows, AConversationHasAGreatestNumberOfMessages) {
  Json row{{"messages", Json::array()}};
  for (int i = 0; i < 400000; ++i)
    row["messages"].push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", "a"}});
  std::string why;
  EXPECT_FALSE(convert_row(row, detect_format(row, "here"), &why));
  EXPECT_TRUE(says(why, "more than 20000")) << why;
}

TEST_F(HostileRows, WhatIsNoFileIsNotWaitedFor) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* name : {"pipe.jsonl", "pipe.jsonl.gz", "pipe.csv"}) {
    ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    EXPECT_TRUE(says(refusal(path(name)), "this is not a regular file")) << name;
  }
  std::filesystem::create_symlink("/dev/zero", path("zero.txt"));
  EXPECT_TRUE(says(refusal(path("zero.txt")), "this is not a regular file"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15))
      << "who waits computes nothing";
}

}  // namespace
}  // namespace octet::data::hostile_rows_test
