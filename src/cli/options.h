// Arguments of a command: flags and key=value overrides in any order. CLI11 parses them; only the sources of
// this room that parse include its header, which takes seconds to compile.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "help/description.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace octet::cli {

/// What the value of an option must be.
struct Check {
  enum class Kind { whole_range, range, at_least_zero, above_zero, words, words_in_any_case };
  Kind kind;
  std::int64_t least = 0, most = 0;       ///< of whole_range
  double from = 0, to = 0;                ///< of range
  std::vector<std::string> choices = {};  ///< of words
};

/// A whole number from `least` to `most`.
inline Check whole(std::int64_t least, std::int64_t most) {
  return {.kind = Check::Kind::whole_range, .least = least, .most = most};
}
/// A number from `from` to `to`.
inline Check between(double from, double to) {
  return {.kind = Check::Kind::range, .from = from, .to = to};
}
/// A finite number of at least 0.
inline Check at_least_zero() {
  return {.kind = Check::Kind::at_least_zero};
}
/// A finite number above 0.
inline Check above_zero() {
  return {.kind = Check::Kind::above_zero};
}
/// One of these words.
inline Check one_of(std::vector<std::string> words) {
  return {.kind = Check::Kind::words, .choices = std::move(words)};
}
/// One of these words in any case; the variable gets it as it is spelled here.
inline Check one_of_any_case(std::vector<std::string> words) {
  return {.kind = Check::Kind::words_in_any_case, .choices = std::move(words)};
}

/// An option of a command, while Options lives.
class Option {
 public:
  explicit Option(CLI::Option* parsed) : parsed_(parsed) {}
  Option& check(const Check& what);
  /// --help shows the value that the variable has now.
  Option& shows_default();
  Option& required();
  /// May be given several times, with one value each.
  Option& repeated();
  /// Takes all words that follow.
  Option& takes_all();
  /// One word holds several values, with `letter` between them.
  Option& split_at(char letter);
  /// Only with the option of this name.
  Option& needs(const std::string& name);
  /// How often it was given.
  std::size_t count() const;
  /// "--max-new"
  std::string name() const;

 private:
  CLI::Option* parsed_;
};

/// A parser that collects what it does not know as configuration overrides: "key=value", "--key=value",
/// "--key value".
class Options {
 public:
  Options(const std::string& name, const std::string& summary);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  /// An option ("--batch,--max-num-seqs") or a positional argument ("CONFIG") whose value goes to `value`. T:
  /// bool, std::int32_t, std::int64_t, std::uint64_t, float, double, std::string, std::optional of
  /// std::int64_t or double, or std::vector of std::int32_t or std::string.
  template <typename T>
  Option& add_option(const std::string& names, T& value, const std::string& description);
  Option& add_flag(const std::string& names, bool& value, const std::string& description);
  /// An option of the command that may also be written like a configuration key: "--name value",
  /// "--name=value" or "name=value".
  template <typename T>
  Option& setting(const std::string& name, T& value, const std::string& description) {
    settings_.push_back(name);
    return add_option("--" + name, value, description);
  }
  /// Of an option that is given twice the last value counts. Before the first option.
  void last_value_counts();
  /// How often the option of this name ("--batch") was given.
  std::size_t count(const std::string& name) const;
  /// A command line that --help and the manual show.
  void example(const std::string& line) { examples_.push_back(line); }
  /// Does what Describing or --help ask for, if one of them does: for commands that parse in their own way.
  /// Returns whether there is nothing left to do.
  bool only_tells(const Arguments& arguments) const;
  /// Parses. Returns false when --help was asked for and printed, or a Describing wants no more than what
  /// there is. Throws Error (usage) for a wrong call.
  bool parse(const Arguments& arguments);
  /// What was not an option of the command. Only with take_overrides().
  const Arguments& overrides() const { return overrides_; }
  /// Accepts overrides; otherwise unknown arguments are errors.
  void take_overrides() { takes_overrides_ = true; }

 private:
  CommandText describe() const;
  Arguments spelled(const Arguments& arguments) const;
  /// The option of this command that a word with hyphens is nearest to, or the setting that a word with "="
  /// is; "" where none is near, or a key of the configuration is nearer.
  std::string near_option(const std::string& word) const;
  /// The one of the command's `own` names that is nearest to `name`, unless a key is nearer.
  std::string nearest_among(const std::vector<std::string>& own, const std::string& name) const;
  /// Throws for a word that is neither an option nor a key, and near an option of the command.
  void refuse_near_setting(const std::string& word) const;

  std::unique_ptr<CLI::App> app_;
  std::deque<Option> added_;
  std::string name_;
  std::vector<std::string> examples_;
  bool takes_overrides_ = false;
  Arguments settings_;
  Arguments overrides_;
};

/// While it lives, a command that is called on this thread describes its options and does nothing else.
class Describing {
 public:
  explicit Describing(CommandText& to);
  ~Describing();
  Describing(const Describing&) = delete;
  Describing& operator=(const Describing&) = delete;
};

}  // namespace octet::cli
