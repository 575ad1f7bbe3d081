// A task that Octet makes itself, to train on without downloading anything: sort three to five common words.
// Its success can be counted on questions that training never saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::cli {

/// A question and its right answer.
struct TaskRow {
  std::string question;
  std::string answer;
};

/// `count` questions with their answers, the same for the same seed. A set of words belongs either to
/// training or to the held-out questions, whatever the seed: `held_out` chooses the side.
std::vector<TaskRow> sorting_questions(std::int64_t count, std::uint64_t seed, bool held_out);

/// What is to be done with a list of words.
enum class ListRule { first_to_last, last_to_first, first_alone };
inline constexpr ListRule kListRules[]{ListRule::first_to_last, ListRule::last_to_first,
                                       ListRule::first_alone};

/// The prompt of a rule, with {text} where the list belongs: what a teacher is told and its student is not.
std::string rule_prompt(ListRule rule);

/// Bare lists of words with what a rule makes of them. Lists are kept apart as those of sorting_questions().
std::vector<TaskRow> list_questions(std::int64_t count, std::uint64_t seed, bool held_out, ListRule rule);

}  // namespace octet::cli
