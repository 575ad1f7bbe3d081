#include "dataset_card.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
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

}  // namespace octet::data
