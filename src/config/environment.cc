// Environment variables: OCTET_<KEY> sets a key below every file; those that guides for other trainers set
// are answered with what they mean here.
#include <algorithm>
#include <cctype>

#include "octet/base/strings.h"
#include "settings.h"

extern char** environ;

namespace octet::config {
namespace {

struct Foreign {
  const char* name;
  const char* value;  ///< the note is made for this value; "" for any
  const char* note;
};

constexpr Foreign kForeign[] = {
    {"NVTE_FP8_DPA_BWD", "1", "attention computes in bf16 or fp32"},
    {"NVTE_APPLY_QK_LAYER_SCALING", "1", "scores are computed in fp32 and need no scaling by layer"},
    {"NVTE_FLASH_ATTN", "", "attention never forms the matrix of scores"},
    {"NVTE_FUSED_ATTN", "", "attention never forms the matrix of scores"},
    {"ACCELERATE_MIXED_PRECISION", "", "bf16 and fp8 decide"},
    {"FP8_BACKEND", "", "fp8 and fp8_recipe decide"},
};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t sign = text.find('=');
    if (sign != std::string::npos) environment[text.substr(0, sign)] = text.substr(sign + 1);
  }
  return environment;
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
    sources.environment.add(key, parse_argument(text, "environment " + variable),
                            {"environment " + variable, key});
  }
  for (const Foreign& foreign : kForeign) {
    const auto found = environment.find(foreign.name);
    if (found == environment.end() || (*foreign.value != '\0' && found->second != foreign.value)) continue;
    sources.note("environment " + found->first + "=" + found->second + ": " + foreign.note);
  }
}

}  // namespace octet::config
