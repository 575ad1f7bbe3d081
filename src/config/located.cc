#include "octet/config/located.h"

#include <algorithm>

#include "rules.h"

namespace octet::config {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";

class Located : RulesOf {
 public:
  using RulesOf::RulesOf;

  Problem of(Problem problem) const {
    const std::size_t named = problem.where.find("configuration key");
    if (named != std::string::npos) {
      const std::string places = places_of(keys_in(problem.where.substr(named), false));
      if (!places.empty()) problem.where.replace(named, std::string::npos, places);
    } else if (find_field(problem.where) != nullptr) {
      problem.where = places_of({problem.where});
    } else if (problem.where.empty()) {
      problem.where = places_of(keys_in(problem.what, true));
    }
    for (const std::string& key : keys_in(problem.what, true)) reword(problem.what, key);
    return problem;
  }

 private:
  /// Returns the names of keys among the words of a text. `unmistakable`: only names that are no English
  /// words.
  static Strings keys_in(const std::string& text, bool unmistakable) {
    Strings keys;
    for (std::size_t at = 0; (at = text.find_first_of(kLetters, at)) != std::string::npos;) {
      const std::size_t end = std::min(text.find_first_not_of(kLetters, at), text.size());
      const std::string word = text.substr(at, end - at);
      const Field* field = find_field(word);
      const bool counts = field != nullptr && field->status == Status::used &&
                          (!unmistakable || word.find('_') != std::string::npos);
      if (counts && std::ranges::find(keys, word) == keys.end()) keys.push_back(word);
      at = end;
    }
    return keys;
  }
  std::string places_of(const Strings& keys) const {
    std::string all;
    for (const std::string& key : keys) all += (all.empty() ? "" : ", ") + said(key) + " (" + at(key) + ")";
    return all;
  }
  void reword(std::string& text, const std::string& key) const {
    const std::string word = said(key);
    if (word == key) return;
    const std::size_t at = text.find(key);
    text.replace(at, key.size(), word);
  }
};

}  // namespace

Problem located(Problem problem, const Resolved& resolved) {
  Resolved own = resolved;
  return Located(own, {.environment = {}}).of(std::move(problem));
}

}  // namespace octet::config
