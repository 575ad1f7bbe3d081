// Arguments of a command: flags and key=value overrides in any order.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "command.h"
#include "help/description.h"

namespace octet::cli {

/// CLI::Range with words of its own: CLI11's differ from version to version.
class Range : public CLI::Range {
 public:
  template <typename T>
  Range(T least, T most) : CLI::Range(least, most) {
    func_ = [least, most](const std::string& word) {
      T value{};
      if (CLI::detail::lexical_cast(word, value) && value >= least && value <= most) return std::string();
      std::ostringstream said;
      said << "Value " << word << " not in range " << least << " to " << most;
      return said.str();
    };
  }
};

/// Checks that a word is a finite number of at least 0, or above it. CLI11's own say a range up to the
/// largest number.
class FromZero : public CLI::Validator {
 public:
  enum class Zero { allowed, refused };
  explicit FromZero(Zero zero) : CLI::Validator(zero == Zero::allowed ? "NONNEGATIVE" : "POSITIVE") {
    func_ = [zero](const std::string& word) {
      double value{};
      if (CLI::detail::lexical_cast(word, value) && std::isfinite(value) &&
          (zero == Zero::allowed ? value >= 0 : value > 0)) {
        return std::string();
      }
      return "Value " + word + " is no finite number " +
             (zero == Zero::allowed ? "of at least 0" : "above 0");
    };
  }
};

/// A transform that takes one of these words in any case, and hands it on as it is spelt here.
inline CLI::IsMember one_of(const std::vector<std::string>& words) {
  return CLI::IsMember(words, CLI::ignore_case);
}

/// A CLI11 parser that collects what it does not know as configuration overrides: "key=value", "--key=value",
/// "--key value".
class Options {
 public:
  Options(const std::string& name, const std::string& summary);
  CLI::App& app() { return app_; }
  /// An option of the command that may also be written like a configuration key: "--name value",
  /// "--name=value" or "name=value".
  template <typename T>
  CLI::Option* setting(const std::string& name, T& value, const std::string& description) {
    settings_.push_back(name);
    return app_.add_option("--" + name, value, description);
  }
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

  CLI::App app_;
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
