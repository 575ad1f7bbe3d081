// Arguments of a command: flags and key=value overrides in any order.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "command.h"

namespace octet::cli {

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
  /// Parses. Returns false when --help was asked for and printed. Throws Error (usage) for a wrong call.
  bool parse(const Arguments& arguments);
  /// What was not an option of the command. Only with take_overrides().
  const Arguments& overrides() const { return overrides_; }
  /// Accepts overrides; otherwise unknown arguments are errors.
  void take_overrides() { takes_overrides_ = true; }

 private:
  CLI::App app_;
  bool takes_overrides_ = false;
  Arguments settings_;
  Arguments overrides_;
};

}  // namespace octet::cli
