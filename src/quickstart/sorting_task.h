// A generated task for training without downloads: sort three to five common words. Its success rate is
// measured on held-out questions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::quickstart {

/// A question and its correct answer.
struct TaskRow {
  std::string question;
  std::string answer;
};

/// Returns `count` questions with their answers. The same seed gives the same questions. A set of words is
/// either in the training set or held out, for every seed; `held_out` chooses the set.
std::vector<TaskRow> sorting_questions(std::int64_t count, std::uint64_t seed, bool held_out);

/// The operation on a list of words.
enum class ListRule { first_to_last, last_to_first, first_alone };
inline constexpr ListRule kListRules[]{ListRule::first_to_last, ListRule::last_to_first,
                                       ListRule::first_alone};

/// Returns the prompt of a rule, with {text} in place of the list. The teacher gets the prompt, the student
/// does not.
std::string rule_prompt(ListRule rule);

/// Returns lists of words without a prompt, and the answers under a rule. Held-out lists are as in
/// sorting_questions().
std::vector<TaskRow> list_questions(std::int64_t count, std::uint64_t seed, bool held_out, ListRule rule);

}  // namespace octet::quickstart
