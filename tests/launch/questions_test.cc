// The scripts for hosts, in a shell of this machine.
#include "check/questions.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace octet::launch::questions_test {
namespace {

std::string output_of(const std::string& script) {
  const test::TemporaryFolder folder("questions");
  test::spill(folder / "script", script);
  return test::shell("sh -s <" + (folder / "script")).out;
}

TEST(Questions, AboutPathsNameTheirKind) {
  const test::TemporaryFolder folder("questions");
  test::spill(folder / "it's a file", "12345");
  test::spill(folder / "token", "");
  const Question question{.program = folder / "it's a file",
                          .folder = folder.path(),
                          .token = "token",
                          .paths = {folder.path(), folder / "it's a file", folder / "none"}};
  const HostAnswer answer(output_of(facts_script(question)));
  for (const auto& [word, value] : std::vector<std::pair<std::string, std::string>>{
           {"program", "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"},
           {"libraries", ""},
           {"sees", "yes"},
           {"path0", "folder"},
           {"path1", "file of 5 bytes"},
           {"path2", "missing"}})
    EXPECT_EQ(answer.value(word), value) << word;
  for (const char* word : {"shm", "tmp", "cores", "gpus", "amd", "files"})
    EXPECT_TRUE(answer.number(word)) << word;
  for (const char* word : {"clock", "name", "mpi", "stack", "memlock"})
    EXPECT_NE(answer.value(word), "") << word;
}

}  // namespace
}  // namespace octet::launch::questions_test
