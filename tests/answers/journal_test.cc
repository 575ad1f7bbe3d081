// The file of answers, as a second call of `trainer generate --out` finds it.
#include "../src/answers/journal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "support/temporary_folder.h"

namespace octet::test::journal_test {
namespace {

using answers::AnswerJournal;
using answers::RowResult;
using Questions = std::vector<std::string>;

class Journal : public testing::Test {
 protected:
  static AnswerJournal::Job job(const Questions& questions, const std::string& settings = "s") {
    return {.settings = settings, .questions = questions};
  }
  static RowResult answer(const std::string& question) {
    return {.lines = {"\"answer to " + question + "\""}, .failure = ""};
  }
  /// Answers the open questions, at most `most` of them, as if the call ended early.
  void run(const Questions& questions, std::size_t most = SIZE_MAX, bool overwrite = false) const {
    AnswerJournal journal(out_, job(questions), overwrite);
    for (std::size_t row = 0; row < questions.size() && most > 0; ++row) {
      const auto number = static_cast<std::int64_t>(row);
      if (journal.done(number)) continue;
      journal.add(number, answer(questions[row]));
      --most;
    }
    const auto all = static_cast<std::int64_t>(questions.size());
    if (!journal.complete() && journal.done(all - 1) && most > 0) journal.finish();
  }
  Problem refusal(const AnswerJournal::Job& job, bool overwrite = false) const {
    try {
      const AnswerJournal journal(out_, job, overwrite);
    } catch (const Error& e) {
      return e.problem();
    }
    return {};
  }
  std::string text() const { return read_file(out_) + "|" + read_file(out_ + ".rows"); }

  const TemporaryFolder folder_{"journal"};
  const std::string out_ = folder_ / "answers.jsonl";
};

struct SecondCall {
  const char* name;
  Questions first;
  std::size_t answered;  ///< number of the first call's questions that it answers
  Questions second;
  std::string found;  ///< part of the refusal; "": the call resumes
};

TEST_F(Journal, FinishedAnswersToOtherQuestionsAreRefusedAndStay) {
  const std::vector<SecondCall> calls{
      {"other questions", {"a", "b"}, 9, {"c", "d"}, "2 of 2 answers"},
      {"other questions than a call asked before it ended early", {"a", "b"}, 1, {"c"}, "1 of 1 answers"},
      {"one question was taken out", {"a", "b", "c"}, 9, {"a", "c"}, "1 of 3 answers"},
      {"one question was changed", {"a", "b"}, 9, {"a", "B"}, "1 of 2 answers"},
      {"one of two equal questions was taken out", {"a", "a"}, 9, {"a"}, "1 of 2 answers"},
      {"an open question was taken out", {"a", "b"}, 1, {"a"}, ""},
      {"the same questions", {"a", "b"}, 9, {"a", "b"}, ""},
      {"more questions", {"a", "b"}, 9, {"x", "a", "b", "y"}, ""},
      {"questions in another order", {"a", "b", "c"}, 9, {"c", "a", "b"}, ""},
  };
  for (const SecondCall& call : calls) {
    SCOPED_TRACE(call.name);
    run(call.first, call.answered, true);
    const std::string before = text();
    const Problem problem = refusal(job(call.second));
    if (call.found.empty()) {
      EXPECT_EQ(problem.what, "");
      run(call.second);
      std::string all;
      for (const std::string& question : call.second) all += "\"answer to " + question + "\"\n";
      EXPECT_EQ(read_file(out_), all);
      continue;
    }
    EXPECT_EQ(problem.code, ExitCode::usage);
    EXPECT_NE(problem.found.find(call.found), std::string::npos) << problem.found;
    EXPECT_NE(problem.fix.find("--overwrite"), std::string::npos) << problem.fix;
    EXPECT_EQ(text(), before);
    run(call.second, SIZE_MAX, true);
    EXPECT_EQ(read_file(out_).find("answer to b"), std::string::npos) << "--overwrite replaces them";
  }
}

TEST_F(Journal, OfTwoCallsAtOnceTheSecondIsRefusedAndHarmsNothing) {
  const Questions questions{"a", "b"};
  {
    AnswerJournal first(out_, job(questions), false);
    first.add(0, answer("a"));
    for (const bool overwrite : {false, true}) {
      for (const Questions& second : {questions, Questions{"c"}}) {
        const Problem problem = refusal(job(second), overwrite);
        EXPECT_EQ(problem.code, ExitCode::busy);
        EXPECT_NE(problem.found.find("process " + std::to_string(::getpid())), std::string::npos);
        EXPECT_EQ(problem.where, out_);
      }
    }
    first.add(1, answer("b"));
    first.finish();
  }
  EXPECT_EQ(read_file(out_), "\"answer to a\"\n\"answer to b\"\n");
  EXPECT_EQ(refusal(job(questions)).what, "") << "the first call has ended";
  EXPECT_FALSE(path_exists(out_ + ".octet.lock"));
}

}  // namespace
}  // namespace octet::test::journal_test
