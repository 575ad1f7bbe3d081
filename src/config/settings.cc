#include "settings.h"

#include <algorithm>
#include <cctype>

#include "dialects/dialects.h"
#include "octet/base/strings.h"

namespace octet::config {

void Settings::add(const std::string& key, const Node& node, const Location& at, bool replace) {
  const Field* field = find_field(key);
  if (field == nullptr) throw Error("a dialect names a key that is not in the table");
  Setting setting{.field = field, .value = check_value(*field, node, at), .at = at};
  const auto found = by_key_.find(field->name);
  if (found == by_key_.end()) {
    by_key_.emplace(field->name, std::move(setting));
    return;
  }
  const auto& first = found->second.value;
  const bool same = first.given == setting.value.given &&
                    (!first.given || canonical(*field, first) == canonical(*field, setting.value));
  if (same && !replace) return;
  if (!replace && at.included != found->second.at.included) {
    if (!at.included) found->second = std::move(setting);
    return;
  }
  if (!replace) {
    complain({.what = "'" + field->name + "' is given twice",
              .found = "as '" + found->second.at.key + "' (" + found->second.at.where + ") and as '" +
                       at.key + "' (" + at.where + ")",
              .where = at.where,
              .fix = "keep one of the two"});
  }
  found->second = std::move(setting);
}

void Settings::refuse(const std::string& key, const Node& node, const Location& at, Problem why) {
  const Field* field = find_field(key);
  if (field == nullptr) throw Error("a dialect names a key that is not in the table");
  why.code = ExitCode::usage;
  Value value;
  value.given = true;
  // The value as if it were supported: true for a switch, the text for a word.
  value.boolean = true;
  value.text = shown(node);
  value.refusal = std::move(why);
  by_key_[field->name] = {.field = field, .value = std::move(value), .at = at};
}

const Setting* Settings::find(const std::string& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &found->second;
}

void Sources::note(const std::string& sentence) {
  if (std::find(notes.begin(), notes.end(), sentence) == notes.end()) notes.push_back(sentence);
}

}  // namespace octet::config

// Reads environment variables: OCTET_<KEY> sets a key with lower priority than every file. Variables of other
// trainers are explained by rules_environment.cc.

extern char** environ;

namespace octet::config {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

Environment variables() {
  Environment environment;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t sign = text.find('=');
    if (sign != std::string::npos) environment[text.substr(0, sign)] = text.substr(sign + 1);
  }
  return environment;
}

}  // namespace

// Captured at the first call, because the program itself sets some variables for libraries later.
Environment process_environment() {
  static const Environment first = variables();
  return first;
}

void translate_environment(const Environment& environment, Sources& sources) {
  const std::string prefix = "OCTET_";
  Strings names;
  for (const auto& name : field_names()) names.push_back(prefix + upper(name));
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with(prefix)) continue;
    const auto found = std::find(names.begin(), names.end(), variable);
    if (found == names.end()) {
      const std::string near = nearest_name(variable, names);
      if (!near.empty()) {
        sources.note("the environment variable " + variable + " is not a key; did you mean " + near + "?");
      }
      continue;
    }
    const std::string& key = field_names()[static_cast<std::size_t>(found - names.begin())];
    const bool whole = is_inline_deepspeed(key, text);
    sources.environment.add(key, whole ? scalar_node(text) : parse_argument(text, "environment " + variable),
                            {"environment " + variable, key});
  }
}

}  // namespace octet::config
