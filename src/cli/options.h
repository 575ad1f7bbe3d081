// Arguments of a command: options and key=value overrides in any order. CLI11 parses them. Its header takes
// seconds to compile, so this header does not include it.
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

/// A constraint on the value of an option.
struct Check {
  enum class Kind { whole_range, range, at_least_zero, above_zero, words, words_in_any_case };
  Kind kind;
  std::int64_t least = 0, most = 0;       ///< limits of a whole_range
  double from = 0, to = 0;                ///< limits of a range
  std::vector<std::string> choices = {};  ///< allowed words
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
/// One of these words in any case; the variable gets the spelling given here.
inline Check one_of_any_case(std::vector<std::string> words) {
  return {.kind = Check::Kind::words_in_any_case, .choices = std::move(words)};
}

/// An option of a command. Valid while its Options lives.
class Option {
 public:
  explicit Option(CLI::Option* parsed) : parsed_(parsed) {}
  Option& check(const Check& what);
  /// --help shows the current value of the variable.
  Option& shows_default();
  Option& required();
  /// The option may be given several times, with one value each.
  Option& repeated();
  /// The option takes all following words.
  Option& takes_all();
  /// A word of the command line may give several values, separated by `letter`.
  Option& split_at(char letter);
  /// The option requires the option with this name.
  Option& needs(const std::string& name);
  /// Returns how often the option was given.
  std::size_t count() const;
  /// Returns the name, like "--max-new".
  std::string name() const;

 private:
  CLI::Option* parsed_;
};

/// A parser that collects unknown arguments as configuration overrides: "key=value", "--key=value", "--key
/// value".
class Options {
 public:
  Options(const std::string& name, const std::string& summary);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  /// Adds an option ("--batch,--max-num-seqs") or a positional argument ("CONFIG"). Its value is stored in
  /// `value`, which must outlive this object. T: bool, std::int32_t, std::int64_t, std::uint64_t, float,
  /// double, std::string, std::optional of std::int64_t or double, or std::vector of std::int32_t or
  /// std::string.
  template <typename T>
  Option& add_option(const std::string& names, T& value, const std::string& description);
  Option& add_flag(const std::string& names, bool& value, const std::string& description);
  /// Adds an option that may also be written like a configuration key: "--name value", "--name=value" or
  /// "name=value".
  template <typename T>
  Option& setting(const std::string& name, T& value, const std::string& description) {
    settings_.push_back(name);
    return add_option("--" + name, value, description);
  }
  /// If an option is given twice, its last value counts. Call this before adding options.
  void last_value_counts();
  /// Returns how often the option with this name ("--batch") was given.
  std::size_t count(const std::string& name) const;
  /// Adds an example command line to --help.
  void example(const std::string& line) { examples_.push_back(line); }
  /// Handles Describing and --help, for commands that do not call parse(). Returns true if the command must
  /// not run.
  bool only_tells(const Arguments& arguments) const;
  /// Parses. Returns false if --help was printed or a Describing is active. Throws Error (usage) for an
  /// invalid call.
  bool parse(const Arguments& arguments);
  /// Returns the arguments that are not options of the command. Only with take_overrides().
  const Arguments& overrides() const { return overrides_; }
  /// Accepts overrides; otherwise unknown arguments are errors.
  void take_overrides() { takes_overrides_ = true; }

 private:
  CommandText describe() const;
  Arguments spelled(const Arguments& arguments) const;
  /// Returns the option nearest to a word with hyphens, or the setting nearest to a word with "=". Returns ""
  /// if none is near, or if a configuration key is nearer.
  std::string near_option(const std::string& word) const;
  /// Returns the name of `own` that is nearest to `name`; "" if a key is nearer.
  std::string nearest_among(const std::vector<std::string>& own, const std::string& name) const;
  /// Throws Error (usage) for a word that is neither an option nor a key but is near an option of the
  /// command.
  void refuse_near_setting(const std::string& word) const;

  std::unique_ptr<CLI::App> app_;
  std::deque<Option> added_;
  std::string name_;
  std::vector<std::string> examples_;
  bool takes_overrides_ = false;
  Arguments settings_;
  Arguments overrides_;
};

/// While an object exists, a command that is called on this thread does not run. It only adds the description
/// of its options to `to`.
class Describing {
 public:
  explicit Describing(CommandText& to);
  ~Describing();
  Describing(const Describing&) = delete;
  Describing& operator=(const Describing&) = delete;
};

}  // namespace octet::cli
