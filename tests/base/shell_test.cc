#include "octet/base/shell.h"

#include <gtest/gtest.h>

#include <string>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace octet::shell_test {
namespace {

TEST(Shell, WordsAreQuotedIfTheyNeedIt) {
  EXPECT_EQ(shell_word("runs/a-b_c.yaml"), "runs/a-b_c.yaml");
  EXPECT_EQ(shell_word("key=a,b:c@d%e+f"), "key=a,b:c@d%e+f");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Shell, ReadsQuotedTextsUnchanged) {
  const test::TemporaryFolder folder("shell");
  for (const std::string text : {"", "a b", "'", "it's \"$x\" `y` \\", "-n", "*", "line\nline"}) {
    test::spill(folder / "script", "printf '%s|%s|' " + quoted_for_shell(text) + " " + shell_word(text));
    EXPECT_EQ(test::shell("sh -s <" + (folder / "script")).out, text + "|" + text + "|");
  }
}

}  // namespace
}  // namespace octet::shell_test
