// Reads environment variables: OCTET_<KEY> sets a key with lower priority than every file. Variables of other
// trainers are explained by rules_environment.cc.
#include <algorithm>
#include <cctype>

#include "dialects/dialects.h"
#include "octet/base/strings.h"
#include "settings.h"

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
