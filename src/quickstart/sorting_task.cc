#include "sorting_task.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "octet/base/files.h"
#include "octet/base/random.h"

namespace octet::quickstart {
namespace {

constexpr std::array<std::string_view, 64> kWords{
    "apple", "bread", "chair", "door",  "earth",   "fire",   "glass", "hand",   "ink",   "jacket", "key",
    "lamp",  "moon",  "night", "ocean", "paper",   "queen",  "river", "salt",   "table", "uncle",  "voice",
    "water", "year",  "zebra", "arm",   "ball",    "cloud",  "dust",  "egg",    "field", "gold",   "house",
    "ice",   "juice", "king",  "leaf",  "milk",    "nose",   "oil",   "park",   "rain",  "sand",   "tree",
    "wind",  "bird",  "city",  "dog",   "fish",    "garden", "hill",  "island", "lake",  "market", "north",
    "road",  "ship",  "stone", "train", "village", "wall",   "bell",  "candle", "desk"};

// Each phrasing has the text before and after the list of words.
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

// Whether a set of words is held out: one in thirty is.
bool is_held_out(const std::string& sorted) {
  return hash64(sorted) % 30 == 0;
}

/// A list of three to five words.
struct List {
  std::vector<std::string_view> words, sorted;
  std::uint32_t choice = 0;  ///< random number for further choices, like the phrasing
};

List draw(std::uint64_t seed, std::uint64_t attempt, bool held_out) {
  const auto choice = philox(seed, RandomUse::data, attempt, held_out ? 1u : 0u);
  List list{.words = {}, .sorted = {}, .choice = choice[1]};
  const std::size_t length = 3 + choice[0] % 3;
  for (std::uint32_t i = 0; list.words.size() < length; ++i) {
    const auto word = kWords[philox(seed, RandomUse::data, attempt, 2u + i)[0] % kWords.size()];
    if (std::ranges::find(list.words, word) == list.words.end()) list.words.push_back(word);
  }
  list.sorted = list.words;
  std::ranges::sort(list.sorted);
  return list;
}

}  // namespace

std::vector<TaskRow> sorting_questions(std::int64_t count, std::uint64_t seed, bool held_out) {
  std::vector<TaskRow> questions;
  for (std::uint64_t attempt = 0; static_cast<std::int64_t>(questions.size()) < count; ++attempt) {
    const List list = draw(seed, attempt, held_out);
    if (is_held_out(join(list.sorted)) != held_out) continue;
    const auto& phrasing = kPhrasings[list.choice % kPhrasings.size()];
    questions.push_back(
        {std::string(phrasing[0]) + join(list.words) + std::string(phrasing[1]), join(list.sorted)});
  }
  return questions;
}

std::string rule_prompt(ListRule rule) {
  switch (rule) {
    case ListRule::first_to_last:
      return "Sort these words from A to Z: {text}.";
    case ListRule::last_to_first:
      return "Sort these words from Z to A: {text}.";
    case ListRule::first_alone:
      return "Which of these words is the first of the alphabet: {text}?";
  }
  return "";
}

std::vector<TaskRow> list_questions(std::int64_t count, std::uint64_t seed, bool held_out, ListRule rule) {
  std::vector<TaskRow> questions;
  for (std::uint64_t attempt = 0; static_cast<std::int64_t>(questions.size()) < count; ++attempt) {
    List list = draw(seed, attempt, held_out);
    if (is_held_out(join(list.sorted)) != held_out) continue;
    if (rule == ListRule::last_to_first) std::ranges::reverse(list.sorted);
    if (rule == ListRule::first_alone) list.sorted.resize(1);
    questions.push_back({join(list.words), join(list.sorted)});
  }
  return questions;
}

}  // namespace octet::quickstart
