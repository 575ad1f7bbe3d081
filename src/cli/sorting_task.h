// A task that Octet makes itself, to train on without downloading anything: sort three to five common words.
// Its success can be counted on questions that training never saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::cli {

struct Question {
  std::string question;
  std::string answer;
};

/// `count` questions with their answers, the same for the same seed. A set of words belongs either to
/// training or to the held-out questions, whatever the seed: `held_out` chooses the side.
std::vector<Question> sorting_questions(std::int64_t count, std::uint64_t seed, bool held_out);

}  // namespace octet::cli
