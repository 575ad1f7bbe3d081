// A mapped file that becomes shorter is reported by name; it does not end the process.
#include "octet/base/mapped_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "octet/base/files.h"
#include "support/temporary_folder.h"

namespace octet::mapped_files_test {
namespace {

const std::size_t kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

class MappedFiles : public testing::Test {
 protected:
  MappedFiles() : folder_("mapped"), path_(folder_ / "file") {
    std::ofstream(path_) << std::string(3 * kPage, 'x');
  }
  void cut(std::size_t bytes) const { std::filesystem::resize_file(path_, bytes); }
  static std::string said() {
    try {
      require_mapped_files(FileSizes::always);
    } catch (const ShortenedFile& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      return e.what();
    }
    return "";
  }
  test::TemporaryFolder folder_;
  std::string path_;
};

TEST_F(MappedFiles, LostPagesReadAsZerosAndTheFileIsNamed) {
  {
    const MappedFile file(path_);
    cut(kPage + 7);
    const std::string_view text = file.text();
    EXPECT_EQ(std::accumulate(text.begin(), text.end(), 0), 'x' * static_cast<int>(kPage + 7));
    EXPECT_THROW(require_mapped_files(), ShortenedFile) << "found without comparing sizes";
    const std::string message = said();
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(kPage + 7) + " bytes"), std::string::npos) << message;
    EXPECT_NE(message.find("start the run again"), std::string::npos) << message;
  }
  EXPECT_EQ(said(), "") << "the file is not mapped any more";
  const MappedFile again(path_);
  EXPECT_EQ(said(), "");
}

TEST_F(MappedFiles, AFileThatLostLessThanAPageIsFoundByItsSize) {
  const MappedFile file(path_);
  cut(3 * kPage - 1);
  EXPECT_EQ(file.text().back(), '\0');
  EXPECT_NE(said(), "");
}

TEST_F(MappedFiles, AFileThatAnotherOneReplacesStaysWhole) {
  MappedFile first(path_);
  const MappedFile file = std::move(first);
  std::ofstream(folder_ / "other") << "short";
  std::filesystem::rename(folder_ / "other", path_);
  EXPECT_EQ(file.text().back(), 'x');
  EXPECT_EQ(said(), "");
  std::filesystem::remove(path_);
  EXPECT_EQ(said(), "");
}

TEST_F(MappedFiles, OtherContentsInTheFileAreFoundAndAnAppendedEndIsNot) {
  struct Case {
    const char* name;
    std::string bytes;
    bool found;
  };
  const std::string old(3 * kPage, 'x');
  for (const Case& c :
       {Case{"as long", std::string(3 * kPage, 'y'), true}, Case{"longer", std::string(4 * kPage, 'y'), true},
        Case{"another end", old.substr(1) + "y", true}, Case{"the same", old, false},
        Case{"an appended end", old + "y", false}}) {
    SCOPED_TRACE(c.name);
    std::ofstream(path_) << old;
    const MappedFile file(path_);
    const int to = ::open(path_.c_str(), O_WRONLY);  // the file is never shorter
    ASSERT_EQ(::write(to, c.bytes.data(), c.bytes.size()), static_cast<ssize_t>(c.bytes.size()));
    ::close(to);
    std::filesystem::last_write_time(path_,
                                     std::filesystem::last_write_time(path_) + std::chrono::seconds(1));
    const std::string message = said();
    EXPECT_EQ(message.find("overwritten") != std::string::npos, c.found) << message;
    EXPECT_EQ(message.find(path_) != std::string::npos, c.found) << message;
    EXPECT_EQ(said(), message) << "and each time";
  }
}

TEST_F(MappedFiles, ALossThatHashesFindIsNotReported) {
  const int file = ::open(path_.c_str(), O_RDWR);
  auto* bytes = static_cast<char*>(::mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  {
    const WatchedMapping watched(bytes, 3 * kPage, file, path_, WatchedMapping::Loss::hashed);
    cut(0);
    bytes[kPage] = 'y';
    EXPECT_EQ(bytes[2 * kPage], '\0');
    EXPECT_EQ(said(), "");
  }
  ::munmap(bytes, 3 * kPage);
  ::close(file);
}

TEST_F(MappedFiles, OtherBusErrorsEndTheProcessAsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // The sanitizer had a handler before, which must see the signal.
  const auto ended_as_before = [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) != 0; };
#else
  const auto ended_as_before = testing::KilledBySignal(SIGBUS);
#endif
  EXPECT_EXIT(
      {
        const MappedFile watched(path_);
        const int file = ::open(path_.c_str(), O_RDONLY);
        const auto* bytes = static_cast<const volatile char*>(
            ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, static_cast<off_t>(2 * kPage)));
        cut(0);
        static_cast<void>(*bytes);
      },
      ended_as_before, "");
}

}  // namespace
}  // namespace octet::mapped_files_test
