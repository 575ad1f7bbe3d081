#include "help/description.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <regex>

#include "octet/base/strings.h"

namespace octet::cli {
namespace {

std::string value_name(const std::string& type) {
  if (type.starts_with("INT") || type.starts_with("UINT")) return "N";
  if (type.starts_with("FLOAT")) return "NUMBER";
  return "TEXT";
}

// Parses CLI11's text of a type and its constraints: "INT:INT in [1 - 4096]", "TEXT:{fp32,bf16}".
void take_type(OptionText& option, const std::string& type) {
  option.value = value_name(type);
  const std::size_t colon = type.find(':');
  if (colon == std::string::npos) return;
  const std::string asked = type.substr(colon + 1);
  std::smatch match;
  if (asked.starts_with('{') && asked.ends_with('}')) {
    option.choices = split(asked.substr(1, asked.size() - 2), ',');
    option.value = "WORD";
  } else if (std::regex_search(asked, match, std::regex(R"(\[(\S+) - (\S+)\])"))) {
    option.bounds = "from " + match[1].str() + " to " + match[2].str();
  } else if (asked.starts_with("NONNEGATIVE")) {
    option.bounds = "at least 0";
  } else if (asked.starts_with("POSITIVE")) {
    option.bounds = "above 0";
  }
}

OptionText text_of(const CLI::Option& option) {
  OptionText text{.words = option.get_description(),
                  .positional = option.get_positional(),
                  .required = option.get_required(),
                  .repeats = option.get_expected_max() > 1 ||
                             option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll};
  if (text.positional) {
    text.names = {option.get_name(true)};
    return text;
  }
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (option.get_type_size() == 0 || option.get_expected_max() == 0) return text;
  take_type(text, option.get_type_name());
  text.fallback = option.get_default_str();
  return text;
}

}  // namespace

std::vector<OptionText> option_texts(const CLI::App& app) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    texts.push_back(text_of(*option));
  }
  std::ranges::stable_partition(texts, &OptionText::positional);
  return texts;
}

}  // namespace octet::cli
