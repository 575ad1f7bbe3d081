#include "option_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "help/description.h"
#include "octet/base/strings.h"

namespace octet::cli {
namespace {

/// An occurrence of an option on the command line.
struct Typed {
  std::string name;                  ///< "world", "--world" or "-w"
  std::optional<std::string> value;  ///< nullopt: it is the last word
};

/// Returns the option that a message of CLI11 begins with, or names after "Could not convert:".
CLI::Option* option_in(CLI::App& app, const std::string& sentence) {
  for (std::string word : split(sentence, ' ')) {
    if (word.ends_with(':')) word.pop_back();
    for (CLI::Option* option : app.get_options()) {
      if (!word.empty() && option->get_name() == word) return option;
    }
  }
  return nullptr;
}

std::vector<Typed> places_of(const CLI::Option& option, const Arguments& words) {
  std::vector<Typed> places;
  if (option.get_positional()) {
    for (const std::string& value : option.results()) places.push_back({option.get_name(), value});
    return places;
  }
  const auto& longs = option.get_lnames();
  const auto& shorts = option.get_snames();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const std::size_t begin = std::min(name.find_first_not_of('-'), name.size());
    const auto& names = begin == 1 ? shorts : longs;
    // "world=8" is a setting; a word without hyphens and "=" belongs to another option.
    if (begin == 0 && equals == std::string::npos) continue;
    if (std::ranges::find(names, name.substr(begin)) == names.end()) continue;
    Typed typed{.name = name, .value = {}};
    if (equals != std::string::npos) {
      typed.value = words[i].substr(equals + 1);
    } else if (i + 1 < words.size()) {
      typed.value = words[i + 1];
    }
    places.push_back(std::move(typed));
  }
  return places;
}

bool passes(CLI::Option& option, const std::string& value) {
  try {
    std::string copy = value;
    return (*option.get_validator(0))(copy).empty();
  } catch (const CLI::OptionNotFound&) {
    return true;  // the option has no validator
  }
}

/// Describes the accepted values: "a whole number from 1 to 4096", "fp32, bf16, fp8".
std::string expected_of(const CLI::Option& option, const OptionText& text) {
  if (option.get_type_name() == "BOOLEAN") return "true or false";
  std::string choices;
  for (const std::string& choice : text.choices) choices += (choices.empty() ? "" : ", ") + choice;
  if (!choices.empty()) return choices;
  std::string kind = text.value == "N" ? "a whole number" : text.value == "NUMBER" ? "a number" : "a text";
  if (text.bounds.empty()) return kind;
  // Options without an upper bound refuse infinity.
  if (!text.bounds.starts_with("from ")) kind = "a finite number";
  return kind + (text.bounds.starts_with("at least ") ? " of " : " ") + text.bounds;
}

OptionText text_of(const CLI::App& app, const CLI::Option& option) {
  for (const OptionText& text : option_texts(app)) {
    for (const std::string& name : text.names) {
      if (name == option.get_name()) return text;
    }
  }
  return {};
}

Error wrong_value(const CLI::App& app, CLI::Option& option, const std::vector<Typed>& places) {
  const OptionText text = text_of(app, option);
  // CLI11 validates all values and converts the last one.
  auto wrong = std::ranges::find_if(
      places, [&](const Typed& typed) { return typed.value && !passes(option, *typed.value); });
  if (wrong == places.end()) --wrong;
  const std::string value = wrong->value.value_or("");
  if (option.get_expected_max() == 0) {
    return Error({.what = "'" + wrong->name + "' takes no value",
                  .found = "'" + value + "'",
                  .where = "command line",
                  .fix = "write " + wrong->name + " alone",
                  .code = ExitCode::usage});
  }
  const std::string near = nearest_name(value, text.choices);
  return Error({.what = "value of '" + wrong->name + "' cannot be used",
                .expected = expected_of(option, text),
                .found = "'" + value + "'",
                .where = "command line",
                .fix = near.empty() ? "give such a value; '" + app.get_name() + " --help' says more"
                                    : "did you mean '" + near + "'?",
                .code = ExitCode::usage});
}

/// Returns the error for an option without a value, or with too many.
Error wrong_number(const CLI::App& app, const CLI::Option& option, const std::vector<Typed>& places) {
  const std::string& name = places.back().name;
  if (places.size() > 1) {
    std::string values;
    for (const Typed& typed : places)
      values += (values.empty() ? "'" : ", '") + typed.value.value_or("") + "'";
    return Error({.what = "'" + name + "' is given more than once",
                  .found = values,
                  .where = "command line",
                  .fix = "give it once",
                  .code = ExitCode::usage});
  }
  const std::string value = text_of(app, option).value;
  return Error({.what = "'" + name + "' has no value",
                .expected = name + (name.starts_with('-') ? " " : "=") + (value.empty() ? "VALUE" : value),
                .where = "command line",
                .fix = "add the value; '" + app.get_name() + " --help' says more",
                .code = ExitCode::usage});
}

}  // namespace

Error option_error(CLI::App& app, const Arguments& typed, const CLI::ParseError& refusal) {
  const bool value = dynamic_cast<const CLI::ValidationError*>(&refusal) != nullptr ||
                     dynamic_cast<const CLI::ConversionError*>(&refusal) != nullptr;
  const bool number = dynamic_cast<const CLI::ArgumentMismatch*>(&refusal) != nullptr;
  CLI::Option* option = value || number ? option_in(app, refusal.what()) : nullptr;
  const std::vector<Typed> places = option != nullptr ? places_of(*option, typed) : std::vector<Typed>{};
  if (!places.empty()) return value ? wrong_value(app, *option, places) : wrong_number(app, *option, places);
  return Error({.what = refusal.what(),
                .where = "command line",
                .fix = "'" + app.get_name() + " --help' lists the options",
                .code = ExitCode::usage});
}

}  // namespace octet::cli
