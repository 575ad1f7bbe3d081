// trainer_log.jsonl on a full disk: rows wait, and none is lost or truncated.
#include "../src/report/run_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "support/temporary_folder.h"

namespace octet::report::run_log_test {
namespace {

// Limits the size of files of this process during the lifetime of the object.
class LargestFile {
 public:
  explicit LargestFile(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LargestFile() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  LargestFile(const LargestFile&) = delete;
  LargestFile& operator=(const LargestFile&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(RunLog, RowsWaitWhileTheDiskTakesNothingAndAreWrittenWhole) {
  const octet::test::TemporaryFolder folder("run_log");
  const std::string path = folder / "log";
  const auto row = [](int step) { return Json{{"current_steps", step}, {"loss", 1.5}, {"text", "a row"}}; };
  {
    RunLog log(path, 0);
    log.append(row(1));
    {
      const LargestFile limit(100);  // within the second or third row
      for (int step = 2; step < 6; ++step) log.append(row(step));
      EXPECT_GE(log.flush(), 3);
      EXPECT_EQ(read_file(path).size(), 100u);
    }
    log.append(row(6));
    EXPECT_EQ(log.flush(), 0);
    EXPECT_EQ(log.rows().size(), 6u);
  }
  int step = 0;
  for (const auto& line : split(read_file(path), '\n')) {
    if (line.empty()) continue;
    EXPECT_EQ(parse_json(line, path), row(++step));
  }
  EXPECT_EQ(step, 6);
}

}  // namespace
}  // namespace octet::report::run_log_test
