// A folder has one owner at a time, however the previous owner ended.
#include "octet/files/folder_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "support/scratch.h"

namespace octet::files::folder_lock_test {
namespace {

constexpr FolderLockOptions kFast{.beat_seconds = 0.1, .patience_seconds = 0.6};
constexpr FolderLockOptions kWithoutKernel{.kernel = false, .beat_seconds = 0.1, .patience_seconds = 0.6};

std::string refusal(const std::string& folder, const FolderLockOptions& options = kFast) {
  try {
    const FolderLock lock(folder, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::busy);
    return error.what();
  }
  return "";
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Another process that holds the folder until it is killed.
class Holder {
 public:
  Holder(const std::string& folder, const FolderLockOptions& options) {
    int ready[2];
    if (::pipe(ready) != 0) throw Error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const FolderLock lock(folder, options);
        [[maybe_unused]] const auto said = ::write(ready[1], "y", 1);
        for (;;) ::pause();
      } catch (...) {
        ::_exit(1);
      }
    }
    char answer = 0;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    ::close(ready[0]);
  }
  ~Holder() { end(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  void send(int signal) const { ::kill(pid_, signal); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

/// Returns the record that a process of another machine would leave, or still write.
std::string record_elsewhere(std::int64_t beat) {
  return Json{{"host", "elsewhere"}, {"boot", "another"}, {"namespace", "pid:[1]"},
              {"pid", 77},           {"started", 5},      {"since", "today"},
              {"beat", beat}}
      .dump();
}

class FolderLockOf : public testing::TestWithParam<bool> {
 protected:
  FolderLockOptions options() const { return GetParam() ? kFast : kWithoutKernel; }
  Scratch scratch_;
};

TEST_P(FolderLockOf, ALivingProcessRefusesAndIsNamed) {
  const Holder holder(scratch_.path(), options());
  const std::string message = refusal(scratch_.path(), options());
  EXPECT_NE(message.find("another run is using the output folder"), std::string::npos) << message;
  EXPECT_NE(message.find("process " + std::to_string(holder.pid()) + " on "), std::string::npos) << message;
  EXPECT_NE(message.find(scratch_.path()), std::string::npos) << message;
}

TEST_P(FolderLockOf, AKilledProcessFreesItAtOnce) {
  Holder holder(scratch_.path(), options());
  holder.end();
  EXPECT_LT(seconds_of([&] { EXPECT_EQ(refusal(scratch_.path(), options()), ""); }), 0.4);
}

TEST_P(FolderLockOf, TheEndFreesItAndLeavesNothing) {
  {
    const FolderLock lock(scratch_.path(), options());
    EXPECT_NO_THROW(lock.require_held());
    EXPECT_NE(refusal(scratch_.path(), options()), "") << "also in one process";
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
  EXPECT_EQ(refusal(scratch_.path(), options()), "");
}

TEST_P(FolderLockOf, AnOwnerElsewhereThatGivesNoSignOfLifeIsGone) {
  put(scratch_ / "octet.lock", record_elsewhere(3));
  const double waited = seconds_of([&] { EXPECT_EQ(refusal(scratch_.path(), options()), ""); });
  EXPECT_GE(waited, 0.6) << "it had its time";
}

TEST_P(FolderLockOf, AnOwnerElsewhereThatGivesOneRefuses) {
  put(scratch_ / "octet.lock", record_elsewhere(3));
  std::thread far([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    put(scratch_ / "octet.lock", record_elsewhere(4));
  });
  const std::string message = refusal(scratch_.path(), options());
  far.join();
  EXPECT_NE(message.find("process 77 on elsewhere, which began on today"), std::string::npos) << message;
}

TEST_P(FolderLockOf, RubbishInTheFileIsNoOwner) {
  for (const char* text : {"", "{", "[]", "{\"pid\": \"x\"}"}) {
    put(scratch_ / "octet.lock", text);
    EXPECT_EQ(refusal(scratch_.path(), options()), "") << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, FolderLockOf, testing::Bool(),
                         [](const auto& kernel) { return kernel.param ? "with" : "without"; });

TEST(FolderLock, BeatsWhileItIsHeld) {
  const Scratch scratch;
  const FolderLock lock(scratch.path(), kFast);
  const auto beat = [&] { return read_json(scratch / "octet.lock")["beat"].get<std::int64_t>(); };
  const std::int64_t before = beat();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_GE(beat(), before + 2);
}

// Simulates that this process was stopped for longer than the patience of another run, without a kernel lock.
TEST(FolderLock, WhoLostItIsTold) {
  const Scratch scratch;
  const FolderLock lock(scratch.path(), kWithoutKernel);
  put(scratch / "octet.lock", record_elsewhere(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_THROW(lock.require_held(), Error);
}

// If many processes start at once, exactly one gets the lock.
TEST(FolderLock, OfManyThatStartAtOnceOneGetsIt) {
  for (const bool kernel : {true, false}) {
    // Without a kernel lock, each process waits half a heartbeat for the others.
    const FolderLockOptions options{.kernel = kernel, .beat_seconds = 1, .patience_seconds = 3};
    const Scratch scratch;
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        int code = 1;
        try {
          const FolderLock lock(scratch.path(), options);
          code = 0;
          ::usleep(2'500'000);
        } catch (const Error&) {
        }
        ::_exit(code);
      }
      children.push_back(child);
    }
    int owners = 0;
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      owners += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
    }
    EXPECT_EQ(owners, 1) << (options.kernel ? "with" : "without") << " the kernel";
  }
}

}  // namespace
}  // namespace octet::files::folder_lock_test
