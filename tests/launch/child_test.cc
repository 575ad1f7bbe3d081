// Programs that this process starts and reads.
#include "child.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "octet/base/timing.h"
#include "octet/launch/processes.h"
#include "support/signals.h"
#include "support/temporary_folder.h"

namespace octet::launch::child_test {
namespace {

class Children : public testing::Test {
 protected:
  Child& start(Child::Start start) { return children_.emplace_back(std::move(start)); }
  Child& script(const std::string& text) { return start({.words = {"sh", "-s"}, .input = text + "\n"}); }

  test::SignalsAsBefore signals_;
  Requests requests_;
  std::deque<Child> children_;
};

TEST_F(Children, AreReadUntilTheyEnd) {
  struct Row {
    std::string script, output, errors;
    int code;
  };
  const std::vector<Row> rows{
      {"echo a; echo b >&2", "a\n", "b\n", 0},
      {"printf a; exit 3", "a", "", 3},
      {"kill -9 $$", "", "", 128 + SIGKILL},
      {"kill -TERM $$; echo blocked", "", "", 128 + SIGTERM},
      {"kill -PIPE $$; echo ignored", "", "", 128 + SIGPIPE},
      {"(sleep 3; echo late) & echo early", "early\n", "", 0},
      {"head -c 300000 /dev/zero | tr '\\0' x", std::string(300000, 'x'), "", 0},
      {"head -c 9000000 /dev/zero | tr '\\0' x", std::string(Child::kMostOutput, 'x'), "", 0},
      {"#" + std::string(300000, 'x') + "\necho a", "a\n", "", 0},
  };
  for (const Row& row : rows) script(row.script);
  const auto began = Clock::now();
  serve(children_, requests_);
  EXPECT_LT(seconds_since(began), 2.5);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Child& child = children_[i];
    SCOPED_TRACE(rows[i].script.substr(0, 60));
    EXPECT_TRUE(child.has_ended());
    EXPECT_FALSE(child.is_late());
    EXPECT_EQ(child.output(), rows[i].output);
    EXPECT_EQ(child.errors(), rows[i].errors);
    EXPECT_EQ(child.code(), rows[i].code);
    EXPECT_GE(child.ended(), child.began());
  }
}

TEST_F(Children, ThatCannotBeExecutedHaveEnded) {
  const Child& child = start({.words = {"/none/program"}});
  EXPECT_TRUE(child.has_ended());
  EXPECT_EQ(child.code(), 127);
  EXPECT_EQ(child.errors(), "/none/program: No such file or directory");
  serve(children_, requests_);
}

TEST_F(Children, TakeFolderAndStreams) {
  const test::TemporaryFolder folder("child");
  Child& child = start(
      {.words = {"sh", "-c", "pwd -P; echo error >&2"}, .merges_errors = true, .folder = folder.path()});
  serve(children_, requests_);
  EXPECT_EQ(child.take_output(), folder.path() + "\nerror\n");
  EXPECT_EQ(child.output(), "");
  EXPECT_EQ(child.errors(), "");
}

TEST_F(Children, WaitForTheEndOfTheirInput) {
  Child& child = start({.words = {"cat"}, .input = "a", .holds_input = true});
  serve(children_, requests_, [&] { return child.output() == "a"; });
  EXPECT_FALSE(child.has_ended());
  child.close_input();
  serve(children_, requests_);
  EXPECT_EQ(child.code(), 0);
}

TEST_F(Children, EndWithTheirTime) {
  const Child& child = start({.words = {"sleep", "30"}, .limit = std::chrono::seconds(0)});
  serve(children_, requests_);
  EXPECT_TRUE(child.is_late());
  EXPECT_EQ(child.code(), 128 + SIGTERM);
}

TEST_F(Children, TakeTheProgramsThatTheyStartedWithThem) {
  for (const bool is_asked : {true, false}) {
    Child& child = script("sleep 30 & echo $!; wait");
    serve(children_, requests_, [&] { return child.output().ends_with('\n'); });
    const Process sleep(std::atoi(child.output().c_str()));
    EXPECT_FALSE(sleep.gone());
    if (is_asked) {
      child.end_by(SIGTERM);
      serve(children_, requests_);
      EXPECT_EQ(child.code(), 128 + SIGTERM);
      EXPECT_FALSE(child.is_late());
    }
    children_.clear();
    EXPECT_LT(::waitpid(-1, nullptr, WNOHANG), 0) << "a process was left";
    for (int i = 0; i < 200 && !sleep.gone(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(sleep.gone());
  }
}

TEST_F(Children, ReceiveARequestToStopOnce) {
  Child& child =
      script("trap 'echo stop' TERM; echo ready; for i in 1 2 3 4 5 6; do sleep 0.02; done; exit 5");
  bool is_sent = false;
  serve(children_, requests_, [&] {
    if (!is_sent && child.output() == "ready\n") is_sent = ::kill(::getpid(), SIGTERM) == 0;
    return false;
  });
  EXPECT_EQ(child.output(), "ready\nstop\n");
  EXPECT_EQ(child.code(), 5);
  EXPECT_EQ(requests_.stop(), SIGTERM);
}

}  // namespace
}  // namespace octet::launch::child_test
