// Each wrong input of the table ends with a single message and writes nothing.
#include <chrono>

#include "cli/wrong_inputs.h"
#include "support/distance.h"

namespace octet::test::wrong_messages_test {
namespace {

// Returns the line after this label; "" if there is none.
std::string line_of(const std::string& message, const std::string& label) {
  const std::size_t at = message.find("\n  " + label);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + 3 + label.size();
  return message.substr(begin, message.find('\n', begin) - begin);
}

TEST(WrongInputs, EachEndsWithItsOneMessageAndWritesNothing) {
  EXPECT_GE(std::size(wrong_inputs::kInputs), 130u);
  const wrong_inputs::Folder folder;
  const std::set<std::string> before = folder.listing();
  const auto start = std::chrono::steady_clock::now();
  for (const wrong_inputs::Wrong& wrong : wrong_inputs::kInputs) {
    SCOPED_TRACE(std::string(wrong.name) + ": trainer " + std::string(wrong.arguments));
    const Outcome run = folder.run(wrong.arguments);
    EXPECT_EQ(run.code, wrong.code) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_EQ(run.err.find("internal error"), std::string::npos) << run.err;
    const std::size_t at = run.err.find("error: ");
    if (at == std::string::npos) continue;
    const std::string message = folder.shortened(run.err.substr(at + 7));
    EXPECT_EQ(message.substr(0, message.find('\n')), wrong.what);
    for (const auto& [label, part] :
         {std::pair{"found:    ", wrong.found}, {"where:    ", wrong.where}, {"to do:    ", wrong.fix}}) {
      const std::string line = line_of(message, label);
      EXPECT_EQ(line.empty(), part.empty()) << label << line;
      EXPECT_NE(line.find(part), std::string::npos) << label << line << "\nexpected: " << part;
    }
    ASSERT_EQ(wrong_inputs::Folder::difference(folder.listing(), before), "") << "it has written";
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(seconds.count()));
}

// Names are unique, and each message has a location or a fix.
TEST(WrongInputs, AreNamedOnceAndSayWhere) {
  std::set<std::string_view> names;
  for (const wrong_inputs::Wrong& wrong : wrong_inputs::kInputs) {
    EXPECT_TRUE(names.insert(wrong.name).second) << wrong.name;
    EXPECT_FALSE(wrong.what.empty());
    EXPECT_TRUE(!wrong.where.empty() || !wrong.fix.empty())
        << wrong.name << " neither says where nor what to do";
  }
}

// A suggested word is as near to the typed word as docs/config.md says, and never equal to it.
TEST(WrongInputs, OfferNamesThatAreNear) {
  int offered = 0;
  for (const wrong_inputs::Wrong& wrong : wrong_inputs::kInputs) {
    constexpr std::string_view question = "did you mean '";
    if (!wrong.fix.starts_with(question)) continue;
    ++offered;
    const std::string offer(wrong.fix.substr(question.size(), wrong.fix.find("'?") - question.size()));
    bool near = false;
    for (const std::string_view text : {wrong.what, wrong.found}) {
      for (const std::string& quoted : split(std::string(text), '\'')) {
        const std::string word = quoted.substr(0, quoted.find('='));
        near = near || (word != offer && edits(word, offer) <= most_edits(word));
      }
    }
    EXPECT_TRUE(near) << wrong.name << " is offered " << offer;
  }
  EXPECT_GE(offered, 15);
}

}  // namespace
}  // namespace octet::test::wrong_messages_test
