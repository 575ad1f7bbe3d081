#include "dataset_files.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;

// Returns the YAML between two lines "---" at the beginning of a card; "" if there is none.
std::string front_matter(const std::string& text) {
  const std::vector<std::string> lines = split(text, '\n');
  std::string yaml;
  if (lines.empty() || trim(lines.front()) != "---") return "";
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (trim(lines[i]) == "---") return yaml;
    yaml += lines[i] + "\n";
  }
  return "";
}

class Card {
 public:
  explicit Card(std::string path) : path_(std::move(path)) {}

  std::vector<CardConfig> configs() const {
    const std::string yaml = front_matter(read_regular_file(path_, kMostBytes));
    if (yaml.find("configs:") == std::string::npos) return {};
    std::vector<CardConfig> configs;
    try {
      const YAML::Node node = YAML::Load(yaml)["configs"];
      if (!node || node.IsNull()) return {};
      if (!node.IsSequence()) refuse("a list of configurations", "configs");
      for (const YAML::Node& item : node) configs.push_back(config_of(item));
    } catch (const YAML::Exception& e) {
      refuse("valid YAML", "line " + std::to_string(e.mark.line + 2) + ": " + e.msg);
    }
    return configs;
  }

 private:
  [[noreturn]] void refuse(const std::string& expected, const std::string& found) const {
    throw Error({.what = "the card of a data set cannot be used",
                 .expected = expected,
                 .found = found,
                 .where = path_ + ", key 'configs'",
                 .fix = "correct the card, remove its 'configs', or name the files by a pattern "
                        "(FOLDER/data/train-*)",
                 .code = ExitCode::usage});
  }

  std::string text_of(const YAML::Node& node, const std::string& key) const {
    if (!node.IsScalar()) refuse("a text for '" + key + "'", "something else");
    return node.Scalar();
  }

  std::vector<std::string> patterns_of(const YAML::Node& node, const std::string& key) const {
    std::vector<std::string> patterns;
    if (!node.IsSequence()) return {text_of(node, key)};
    for (const YAML::Node& item : node) patterns.push_back(text_of(item, key));
    return patterns;
  }

  // A pattern, a list of patterns (both of the split train), or a list of {split: NAME, path: PATTERNS}.
  std::vector<CardSplit> splits_of(const YAML::Node& node) const {
    const bool named = node.IsSequence() && node.size() > 0 && node[0].IsMap();
    if (!named) return {{"train", patterns_of(node, "data_files")}};
    std::vector<CardSplit> splits;
    for (const YAML::Node& item : node) {
      if (!item.IsMap() || !item["split"] || !item["path"])
        refuse("{split: NAME, path: PATTERN} in 'data_files'", "an item without one of them");
      CardSplit split{text_of(item["split"], "split"), patterns_of(item["path"], "path")};
      if (std::ranges::any_of(splits, [&](const CardSplit& s) { return s.name == split.name; }))
        refuse("each split once", "split '" + split.name + "' twice");
      splits.push_back(std::move(split));
    }
    return splits;
  }

  CardConfig config_of(const YAML::Node& node) const {
    // Keys that change neither the set of rows nor how they are read.
    static constexpr std::array kHarmless{"drop_labels", "version", "description", "features"};
    if (!node.IsMap()) refuse("a map for each configuration", "something else");
    CardConfig config;
    for (const auto& member : node) {
      const std::string key = text_of(member.first, "a key");
      const YAML::Node value = member.second;
      if (value.IsNull()) continue;
      if (key == "config_name") {
        config.name = text_of(value, key);
      } else if (key == "data_dir") {
        config.folder = text_of(value, key);
      } else if (key == "default") {
        config.chosen = text_of(value, key) == "true";
      } else if (key == "data_files") {
        config.splits = splits_of(value);
      } else if (std::ranges::find(kHarmless, key) == kHarmless.end()) {
        config.others.push_back(key);
      }
    }
    return config;
  }

  std::string path_;
};

}  // namespace

std::vector<CardConfig> card_configs(const std::string& folder) {
  const std::string path = folder + "/README.md";
  return path_exists(path) ? Card(path).configs() : std::vector<CardConfig>();
}

namespace {

namespace fs = std::filesystem;

constexpr int kMostFolders = 32;  // depth of nested folders

// Whether `c` is in a set of characters: [abc], [0-9], [!a]. `end` is the position after the bracket.
bool in_brackets(std::string_view pattern, std::size_t begin, std::size_t end, char c) {
  std::string_view set = pattern.substr(begin + 1, end - begin - 2);
  const bool others = set.starts_with('!') || set.starts_with('^');
  if (others) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == c;
    }
  }
  return found != others && c != '/';
}

// Returns the position after the bracket that begins at `begin`; `begin` itself if the bracket has no end.
std::size_t end_of_brackets(std::string_view pattern, std::size_t begin) {
  std::size_t at = begin + 1;
  if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) ++at;
  const std::size_t end = at < pattern.size() ? pattern.find(']', at + 1) : std::string_view::npos;
  return end == std::string_view::npos ? begin : end + 1;
}

void add_files(const fs::path& folder, const std::string& below, int depth, std::set<std::string>& visited,
               std::vector<std::string>& files) {
  std::error_code code, none;
  // A link to a folder above would list its files again.
  const std::string real = fs::canonical(folder, none).string();
  if (depth > kMostFolders || !visited.insert(real).second) return;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    if (at->is_directory(none)) {
      if (!name.starts_with("__")) add_files(at->path(), below + name + "/", depth + 1, visited, files);
    } else if (at->is_regular_file(none)) {
      files.push_back(below + name);
    }
  }
  if (code)
    throw Error({.what = "a folder of data cannot be read",
                 .found = code.message(),
                 .where = folder.string(),
                 .fix = "check the permissions of the folder",
                 .code = exit_code_of(code.value())});
}

}  // namespace

bool matches_path(std::string_view pattern, std::string_view path) {
  // matched[i]: the pattern read so far matches the first i characters of the path.
  std::vector<char> matched(path.size() + 1, 0), next(path.size() + 1, 0);
  matched[0] = 1;
  for (std::size_t p = 0; p < pattern.size();) {
    std::ranges::fill(next, 0);
    const bool folder_begins = p == 0 || pattern[p - 1] == '/';
    if (folder_begins && pattern.substr(p).starts_with("**/")) {
      for (std::size_t i = 0, open = 0; i <= path.size(); ++i) {
        if (matched[i]) open = 1, next[i] = 1;
        if (open && i > 0 && path[i - 1] == '/') next[i] = 1;
      }
      p += 3;
    } else if (pattern[p] == '*') {
      const bool across = pattern.substr(p).starts_with("**");
      for (std::size_t i = 0, open = 0; i <= path.size(); ++i) {
        if (i > 0 && path[i - 1] == '/' && !across) open = 0;
        if (matched[i]) open = 1;
        next[i] = open ? 1 : 0;
      }
      p += across ? 2 : 1;
    } else {
      const std::size_t end = pattern[p] == '[' ? end_of_brackets(pattern, p) : p;
      for (std::size_t i = 0; i < path.size(); ++i) {
        const bool one = end > p             ? in_brackets(pattern, p, end, path[i])
                         : pattern[p] == '?' ? path[i] != '/'
                                             : path[i] == pattern[p];
        if (matched[i] && one) next[i + 1] = 1;
      }
      p = end > p ? end : p + 1;
    }
    matched.swap(next);
  }
  return matched.back() != 0;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::set<std::string> visited;
  add_files(folder, "", 0, visited, files);
  std::ranges::sort(files);
  return files;
}

}  // namespace octet::data
