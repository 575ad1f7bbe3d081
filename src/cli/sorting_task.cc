#include "sorting_task.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "octet/base/files.h"
#include "octet/base/random.h"

namespace octet::cli {
namespace {

constexpr std::array<std::string_view, 64> kWords{
    "apple", "bread", "chair", "door",  "earth",   "fire",   "glass", "hand",   "ink",   "jacket", "key",
    "lamp",  "moon",  "night", "ocean", "paper",   "queen",  "river", "salt",   "table", "uncle",  "voice",
    "water", "year",  "zebra", "arm",   "ball",    "cloud",  "dust",  "egg",    "field", "gold",   "house",
    "ice",   "juice", "king",  "leaf",  "milk",    "nose",   "oil",   "park",   "rain",  "sand",   "tree",
    "wind",  "bird",  "city",  "dog",   "fish",    "garden", "hill",  "island", "lake",  "market", "north",
    "road",  "ship",  "stone", "train", "village", "wall",   "bell",  "candle", "desk"};

// Each phrasing is what stands before and after the list of words.
constexpr std::array<std::array<std::string_view, 2>, 6> kPhrasings{
    {{"Sort these words: ", "."},
     {"Put in alphabetical order: ", ""},
     {"Please arrange ", " from A to Z."},
     {"What is the alphabetical order of ", "?"},
     {"Order the words ", " alphabetically."},
     {"In a dictionary, how do ", " follow?"}}};

std::string join(const std::vector<std::string_view>& words) {
  std::string text;
  for (const auto word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

// One set of words in thirty is held out.
bool is_held_out(const std::string& sorted) {
  return hash64(sorted) % 30 == 0;
}

}  // namespace

std::vector<Question> sorting_questions(std::int64_t count, std::uint64_t seed, bool held_out) {
  std::vector<Question> questions;
  for (std::uint64_t attempt = 0; static_cast<std::int64_t>(questions.size()) < count; ++attempt) {
    const auto choice = philox(seed, RandomUse::data, attempt, held_out ? 1u : 0u);
    const std::size_t length = 3 + choice[0] % 3;
    const auto& phrasing = kPhrasings[choice[1] % kPhrasings.size()];
    std::vector<std::string_view> words;
    for (std::uint32_t i = 0; words.size() < length; ++i) {
      const auto word = kWords[philox(seed, RandomUse::data, attempt, 2u + i)[0] % kWords.size()];
      if (std::ranges::find(words, word) == words.end()) words.push_back(word);
    }
    const std::string asked = join(words);
    std::ranges::sort(words);
    const std::string sorted = join(words);
    if (is_held_out(sorted) != held_out) continue;
    questions.push_back({std::string(phrasing[0]) + asked + std::string(phrasing[1]), sorted});
  }
  return questions;
}

}  // namespace octet::cli
