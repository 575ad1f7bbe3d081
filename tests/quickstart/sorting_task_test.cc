// The generated task: its answers, and the border between training and held-out questions.
#include "../src/quickstart/sorting_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "octet/base/strings.h"

namespace octet::quickstart::sorting_task_test {
namespace {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (const std::string& word : split(list, ',')) words.emplace_back(trim(word));
  return words;
}

TEST(SortingTask, HeldOutSetsOfWordsAreInNoTrainingSetOfAnySeed) {
  std::set<std::string> held_out;
  for (const TaskRow& row : sorting_questions(300, 1, true)) held_out.insert(row.answer);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    for (const TaskRow& row : sorting_questions(2000, seed, false))
      EXPECT_FALSE(held_out.contains(row.answer));
  }
}

TEST(SortingTask, AnswersFollowTheRule) {
  for (const ListRule rule : kListRules) {
    for (const TaskRow& row : list_questions(100, 5, false, rule)) {
      std::vector<std::string> words = words_of(row.question);
      EXPECT_GE(words.size(), 3u);
      EXPECT_LE(words.size(), 5u);
      std::ranges::sort(words);
      if (rule == ListRule::last_to_first) std::ranges::reverse(words);
      if (rule == ListRule::first_alone) words.resize(1);
      EXPECT_EQ(words_of(row.answer), words) << row.question;
    }
  }
}

TEST(SortingTask, IsTheSameForOneSeed) {
  const auto one = sorting_questions(50, 7, false), other = sorting_questions(50, 7, false);
  const auto another = sorting_questions(50, 8, false);
  const auto same = [](const TaskRow& a, const TaskRow& b) {
    return a.question == b.question && a.answer == b.answer;
  };
  EXPECT_TRUE(std::ranges::equal(one, other, same));
  EXPECT_FALSE(std::ranges::equal(one, another, same));
}

}  // namespace
}  // namespace octet::quickstart::sorting_task_test
