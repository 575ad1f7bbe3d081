// The call of launch/check-hosts.
#include "check/call.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace octet::launch::check_call_test {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// The parts of a call, or "usage" and the complaint.
std::string parts_of(const std::string& line) {
  std::string complaint;
  const auto call = read_check_call(line.empty() ? Words{} : split(line, ' '), complaint);
  if (!call) return "usage: " + complaint;
  return call->program + "|" + call->folder + "|" + call->config + "|" + call->seconds + "|" +
         (call->sends_messages ? "messages" : "hosts") + "|" + call->hostfile + "|" +
         joined(call->mpirun_options);
}

TEST(CheckCall, IsReadLikeGetopts) {
  struct Row {
    std::string line, parts;
  };
  for (const Row& row : std::vector<Row>{
           {"hosts", "|||300|messages|hosts|"},
           {"-p a -d b -c c -t 5 -n hosts", "a|b|c|5|hosts|hosts|"},
           {"-pa -db -cc -t5 hosts", "a|b|c|5|messages|hosts|"},
           {"-nd b hosts", "|b||300|hosts|hosts|"},
           {"-np hosts f", "hosts|||300|hosts|f|"},
           {"hosts -n --mca a b", "|||300|messages|hosts|-n --mca a b"},
           {"-n -- -hosts x", "|||300|hosts|-hosts|x"},
           {"- x", "|||300|messages|-|x"},
           {"-t 1 -t 2 hosts", "|||2|messages|hosts|"},
           {"", "usage: "},
           {"-n", "usage: "},
           {"-h hosts", "usage: "},
           {"-n --", "usage: "},
           {"-x hosts", "usage: illegal option -- x"},
           {"--help", "usage: illegal option -- -"},
           {"hosts -x", "|||300|messages|hosts|-x"},
           {"-n -t", "usage: option requires an argument -- t"},
       })
    EXPECT_EQ(parts_of(row.line), row.parts) << row.line;
}

/// A folder like launch/, with a program.
class CheckOrders : public testing::Test {
 protected:
  CheckOrders() : folder_("check_order") {
    for (const char* file : {"launch/check-hosts", "launch/trainer", "build/bin/trainer", "path/trainer"}) {
      test::spill(folder_ / file, "");
      fs::permissions(folder_ / file, fs::perms::owner_all);
    }
    call_.folder = folder_.path();
  }
  CheckOrder order() const { return order_of(call_, folder_ / "launch/check-hosts", environment_); }
  // The message with its place, or "".
  std::string refused() const {
    try {
      order();
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_FALSE(e.problem().expected.empty());
      EXPECT_FALSE(e.problem().fix.empty());
      return e.problem().what + ": " + e.problem().where;
    }
  }
  test::TemporaryFolder folder_;
  CheckCall call_;
  Environment environment_;
};

TEST_F(CheckOrders, FindTheProgram) {
  environment_["PATH"] = "/none:" + (folder_ / "path");
  EXPECT_EQ(order().program, folder_ / "build/bin/trainer");
  EXPECT_EQ(order().launcher, folder_ / "launch/mpirun");
  environment_["OCTETRUN_BUILD"] = folder_ / "other";
  EXPECT_EQ(order().program, folder_ / "launch/trainer");
  fs::remove(folder_ / "launch/trainer");
  EXPECT_EQ(order().program, folder_ / "path/trainer");
  fs::remove(folder_ / "path/trainer");
  EXPECT_EQ(refused(), "the program does not exist: build/bin/trainer");
  call_.program = folder_ / "launch/../build/bin/trainer";
  EXPECT_EQ(order().program, folder_ / "build/bin/trainer");
  test::spill(folder_ / "launch/octet-mpirun", "");
  fs::permissions(folder_ / "launch/octet-mpirun", fs::perms::owner_all);
  EXPECT_EQ(order().launcher, folder_ / "launch/octet-mpirun");
}

TEST_F(CheckOrders, RefuseTheFirstWrongValue) {
  call_.folder = folder_ / "none";
  EXPECT_EQ(refused(), "the folder does not exist: -d " + (folder_ / "none"));
  call_.config = folder_ / "none.yaml";
  EXPECT_EQ(refused(), "the configuration cannot be read: -c " + (folder_ / "none.yaml"));
  for (const char* seconds : {"", "0", "00", "-1", "1.5", "2x", "x"}) {
    call_.seconds = seconds;
    EXPECT_EQ(refused(), std::string("-t is not a number of seconds: -t ") + seconds);
  }
  call_.program = folder_ / "none\n";
  EXPECT_EQ(refused(), "the program does not exist: " + (folder_ / "none\\x0A"));
}

TEST_F(CheckOrders, TakeSeconds) {
  EXPECT_EQ(order().seconds.count(), 300);
  call_.seconds = "07";
  EXPECT_EQ(order().seconds.count(), 7);
  call_.seconds = "99999999999999999999999999";
  EXPECT_EQ(order().seconds.count(), 1'000'000'000);
}

TEST(AbsolutePath, KeepsTheLinksOfTheShell) {
  const test::TemporaryFolder folder("absolute_path");
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "link");
  const fs::path before = fs::current_path();
  fs::current_path(folder / "real");
  const Environment linked{{"PWD", folder / "link"}};
  struct Row {
    std::string path, absolute;
    Environment environment;
  };
  for (const Row& row : std::vector<Row>{
           {"/a/./b/../c/", "/a/c", {}},
           {"/", "/", {}},
           {"x", folder / "link/x", linked},
           {".", folder / "link", linked},
           {"../x", folder / "x", linked},
           {"x", folder / "real/x", {}},
           {"x", folder / "real/x", {{"PWD", "/nowhere"}}},
           {"x", folder / "real/x", {{"PWD", "."}}},
       })
    EXPECT_EQ(absolute_path(row.path, row.environment), row.absolute) << row.path;
  fs::current_path(before);
}

}  // namespace
}  // namespace octet::launch::check_call_test
