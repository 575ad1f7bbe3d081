#include "check/named_paths.h"

#include <algorithm>
#include <array>
#include <optional>

#include "check/call.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

constexpr std::array<std::string_view, 6> kKeysOfPaths{
    "model_name_or_path", "adapter_name_or_path", "dataset", "eval_dataset", "dataset_dir", "tokenized_path"};
constexpr std::string_view kSpaces = " \t";

// Cuts a comment, which begins at the start of the line or after a blank.
std::string_view without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
    if (at == 0 || kSpaces.find(line[at - 1]) != std::string_view::npos) return line.substr(0, at);
  }
  return line;
}

// Returns the key of a line `KEY: ...` without indentation.
std::optional<std::string_view> key_of_line(std::string_view line) {
  const std::size_t end = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
  if (end == 0 || end == std::string_view::npos || line[end] != ':') return std::nullopt;
  return line.substr(0, end);
}

// Returns the text of a line `- TEXT`.
std::optional<std::string_view> list_entry_of(std::string_view line) {
  const std::size_t dash = line.find_first_not_of(kSpaces);
  if (dash == std::string_view::npos || line[dash] != '-') return std::nullopt;
  if (dash + 1 == line.size() || kSpaces.find(line[dash + 1]) == std::string_view::npos) return std::nullopt;
  return line.substr(dash + 2);
}

void add_values(std::string_view key, std::string_view text, std::vector<NamedPath>& paths) {
  std::string values(text);
  std::erase_if(values, [](char c) { return std::string_view("[]\"'").find(c) != std::string_view::npos; });
  for (const std::string& part : split(values, ',')) {
    const std::string_view value = trim(part);
    if (!value.empty() && value != "null") paths.push_back({std::string(key), std::string(value)});
  }
}

bool is_pattern(const std::string& path) {
  return path.find_first_of("*?") != std::string::npos;
}

bool can_only_be_path(const std::string& value) {
  return value.starts_with('/') || value.starts_with("./") || value.starts_with("../");
}

}  // namespace

std::vector<NamedPath> named_paths(std::string_view yaml) {
  std::vector<NamedPath> paths;
  std::string key;  // "" while the lines belong to another key
  for (const std::string& whole : split(yaml, '\n')) {
    const std::string_view line = without_comment(whole);
    if (const auto found = key_of_line(line)) {
      key = std::ranges::find(kKeysOfPaths, *found) != kKeysOfPaths.end() ? std::string(*found) : "";
      if (!key.empty()) add_values(key, line.substr(key.size() + 1), paths);
    } else if (const auto entry = list_entry_of(line); entry && !key.empty()) {
      add_values(key, *entry, paths);
    }
  }
  return paths;
}

std::vector<std::string> existing_paths(const std::string& config, const Environment& environment) {
  if (config.empty()) return {};
  const std::vector<NamedPath> named = named_paths(read_file(config));
  const auto folder = std::ranges::find(named, "dataset_dir", &NamedPath::key);
  const std::string data = folder == named.end() ? "data" : folder->value;
  std::vector<std::string> paths;
  for (const auto& [key, value] : named) {
    std::string found;
    for (const std::string& candidate : {value, data + "/" + value}) {
      if (found.empty() && path_exists(candidate)) found = absolute_path(candidate, environment);
    }
    if (!found.empty()) {
      paths.push_back(found);
    } else if (key != "tokenized_path" && !is_pattern(value) && can_only_be_path(value)) {
      throw Error({.what = "the configuration names a path that does not exist",
                   .expected = "a file or folder, after " + key,
                   .where = printable_line(value),
                   .fix = printable_line("check the path, or leave out -c " + config),
                   .code = ExitCode::usage});
    }
  }
  return paths;
}

}  // namespace octet::launch
