#include "splits.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "dataset_files.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

/// The words that mark a split in the name of a folder or a file.
struct Keywords {
  const char* split;
  std::vector<std::string_view> words;
};
const std::array<Keywords, 3>& keywords() {
  static const std::array<Keywords, 3> all{{{"train", {"train", "training"}},
                                            {"validation", {"validation", "valid", "dev", "val"}},
                                            {"test", {"test", "testing", "eval", "evaluation"}}}};
  return all;
}

constexpr std::string_view kShard = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";

// Files that describe rows, and the results that `datasets` caches in the same folder.
bool describes_rows(const std::string& file) {
  static constexpr std::array kDescriptions{"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                            "state.json", "config.json"};
  const std::string name = fs::path(file).filename().string();
  return std::ranges::find(kDescriptions, name) != kDescriptions.end() || matches_path("cache-*.arrow", name);
}

bool is_row_file(const std::string& file) {
  return is_data_file(file) && !describes_rows(file);
}

// Returns whether a word is in a name, between its ends, digits and the characters "-._ ". The case of
// letters does not matter.
bool has_word(std::string_view cased, std::string_view word, bool may_end) {
  const std::string name = lower_case(std::string(cased));
  const auto parts = [](char c) {
    return std::string_view("-._ 0123456789").find(c) != std::string_view::npos;
  };
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool ends = end == name.size() ? may_end : parts(name[end]);
    if ((at == 0 || parts(name[at - 1])) && ends) return true;
  }
  return false;
}

bool has_any_word(std::string_view name, const Keywords& split, bool may_end) {
  return std::ranges::any_of(split.words, [&](std::string_view w) { return has_word(name, w, may_end); });
}

std::string name_of(const std::string& file) {
  return fs::path(file).filename().string();
}

bool in_folder_of(const std::string& file, const Keywords& split) {
  const std::vector<std::string> parts = octet::split(file, '/');
  return std::any_of(parts.begin(), parts.end() - 1,
                     [&](const std::string& part) { return has_any_word(part, split, true); });
}

// Returns the split of a file such as "data/train_sft-00000-of-00002.parquet"; "" for other names.
std::string split_of_shard(const std::string& file) {
  const std::string name = name_of(file);
  for (std::size_t at = name.find('-'); at != std::string::npos; at = name.find('-', at + 1)) {
    if (at > 0 && matches_path(kShard, std::string_view(name).substr(at))) return name.substr(0, at);
  }
  return "";
}

bool names_default_split(const std::string& split) {
  return std::ranges::any_of(keywords(), [&](const Keywords& k) { return has_any_word(split, k, true); });
}

void add(std::vector<Split>& splits, const std::string& name, const std::string& file) {
  auto found = std::ranges::find(splits, name, &Split::name);
  if (found == splits.end()) found = splits.insert(splits.end(), {name, {}});
  if (std::ranges::find(found->files, file) == found->files.end()) found->files.push_back(file);
}

// Groups the shards in the folder `data` by the split in their names. Without such shards, the user may have
// named the folder `data` itself. Then groups the shards in this folder, but only if every file names a
// split.
std::vector<Split> by_shards(const std::vector<std::string>& files) {
  std::vector<Split> in_data, here;
  bool all_named = true;
  for (const std::string& file : files) {
    const std::string split = split_of_shard(file), folder = fs::path(file).parent_path().string();
    if (folder == "data" && !split.empty()) add(in_data, split, file);
    all_named &= folder.empty() && !split.empty() && names_default_split(split);
    if (folder.empty() && !split.empty()) add(here, split, file);
  }
  if (!in_data.empty()) return in_data;
  return all_named ? here : std::vector<Split>();
}

std::vector<Split> by_words(const std::vector<std::string>& files) {
  for (const bool folders : {true, false}) {
    std::vector<Split> splits;
    for (const Keywords& split : keywords()) {
      for (const std::string& file : files) {
        if (folders ? in_folder_of(file, split) : has_any_word(name_of(file), split, false))
          add(splits, split.split, file);
      }
    }
    if (!splits.empty()) return splits;
  }
  return {};
}

// Groups files by names alone, without a card. `all` are paths relative to a folder.
std::vector<Split> by_names(const std::vector<std::string>& all) {
  std::vector<std::string> files;
  std::ranges::copy_if(all, std::back_inserter(files), is_row_file);
  if (files.empty()) return {};
  if (auto splits = by_shards(files); !splits.empty()) return splits;
  if (auto splits = by_words(files); !splits.empty()) return splits;
  return {{"train", files}};
}

// Returns the files that match the patterns of a card. If some of them hold rows, other files, such as texts
// in the same folder, are left out.
std::vector<std::string> matched(const std::vector<std::string>& all, const CardSplit& split) {
  std::vector<std::string> found, rows;
  for (const std::string& pattern : split.patterns) {
    const std::string_view relative = std::string_view(pattern).substr(pattern.starts_with("./") ? 2 : 0);
    for (const std::string& file : all) {
      if (!matches_path(relative, file) || describes_rows(file)) continue;
      if (std::ranges::find(found, file) == found.end()) found.push_back(file);
    }
  }
  std::ranges::copy_if(found, std::back_inserter(rows), is_data_file);
  return rows.empty() ? found : rows;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Returns the chosen configuration of the card; nothing if the card has none.
std::optional<CardConfig> chosen_config(const std::vector<CardConfig>& configs, const SplitChoice& choice) {
  if (configs.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (const CardConfig& config : configs) names.push_back(config.name);
  const auto named = std::ranges::find(configs, choice.subset, &CardConfig::name);
  if (named != configs.end()) return *named;
  if (!choice.subset.empty() && is_folder(choice.folder + "/" + choice.subset)) return std::nullopt;
  if (choice.subset.empty()) {
    if (configs.size() == 1) return configs.front();
    const auto chosen = std::ranges::find(configs, true, &CardConfig::chosen);
    if (chosen != configs.end()) return *chosen;
    const auto standard = std::ranges::find(configs, "default", &CardConfig::name);
    if (standard != configs.end()) return *standard;
  }
  const std::string near = nearest_name(choice.subset, names);
  throw Error(
      {.what = choice.subset.empty()
                   ? "data set '" + choice.name + "' has several configurations, and none is its default"
                   : "data set '" + choice.name + "' has no configuration '" + choice.subset + "'",
       .expected = "one of " + listed(names) + ", as " + choice.folder + "/README.md says",
       .where = choice.where,
       .fix = near.empty() ? "name one by \"subset\" in an entry of dataset_info.json"
                           : "did you mean '" + near + "'?",
       .code = ExitCode::usage});
}

// Returns the folder of a subset that no card names.
std::string folder_of_subset(const SplitChoice& choice) {
  if (choice.subset.empty()) return choice.folder;
  for (const char* below : {"/", "/data/"}) {
    if (std::string path = choice.folder + below + choice.subset; is_folder(path)) return path;
  }
  throw Error({.what = "the subset of a data set does not exist",
               .found = "no folder " + choice.folder + "/" + choice.subset,
               .where = choice.where,
               .fix = "check the name, or remove it",
               .code = ExitCode::usage});
}

std::vector<Split> below(const std::string& folder, std::vector<Split> splits) {
  for (Split& split : splits) {
    for (std::string& file : split.files) file.insert(0, folder + "/");
  }
  return splits;
}

// "train_sft (2 files)".
std::string counted(const Split& split) {
  const std::size_t files = split.files.size();
  return split.name + " (" + with_commas(static_cast<std::int64_t>(files)) +
         (files == 1 ? " file)" : " files)");
}

const Split* find(const std::vector<Split>& splits, const std::string& name) {
  const auto found = std::ranges::find(splits, name, &Split::name);
  if (found != splits.end()) return &*found;
  // The same name with other upper and lower case, as in Train-00000-of-00001.parquet.
  const auto lower = [](const Split& split) { return lower_case(split.name); };
  const auto cased = std::ranges::find(splits, lower_case(name), lower);
  if (cased != splits.end()) return &*cased;
  // A synonym of a split, such as dev or valid.
  for (const Keywords& split : keywords()) {
    if (std::ranges::find(split.words, lower_case(name)) == split.words.end()) continue;
    const auto same = std::ranges::find(splits, split.split, &Split::name);
    if (same != splits.end()) return &*same;
  }
  return nullptr;
}

// Returns the files with the name of a split in their own names. Used if no rule finds that split.
Split named_in_files(const std::vector<Split>& splits, const std::string& name) {
  Split found{name, {}};
  for (const Split& split : splits) {
    for (const std::string& file : split.files) {
      if (has_word(name_of(file), lower_case(name), false)) found.files.push_back(file);
    }
  }
  std::ranges::sort(found.files);
  return found;
}

[[noreturn]] void no_split(const SplitChoice& choice, const std::string& split,
                           const std::vector<Split>& splits) {
  std::vector<std::string> names, there;
  for (const Split& s : splits) {
    names.push_back(s.name);
    there.push_back(counted(s));
  }
  const std::string near = nearest_name(split, names);
  throw Error({.what = "split '" + split + "' of data set '" + choice.name + "' is not there",
               .expected = "one of the splits of " + choice.folder,
               .found = listed(there),
               .where = choice.where,
               .fix = !near.empty()
                          ? "did you mean '" + near + "'?"
                          : std::string("name one of them by ") +
                                (choice.evaluates ? "dataset_test_split" : "dataset_train_split") +
                                ", by \"split\" in an entry of dataset_info.json, or name files by a pattern",
               .code = ExitCode::usage});
}

}  // namespace

std::vector<Split> splits_of(const SplitChoice& choice) {
  const auto config = chosen_config(card_configs(choice.folder), choice);
  if (!config) {
    const std::string folder = folder_of_subset(choice);
    return below(folder, by_names(files_below(folder)));
  }
  if (!config->others.empty()) {
    log::warn("data set '" + choice.name + "': these keys of its card are ignored: " + listed(config->others),
              log::Importance::setting);
  }
  std::string folder = choice.folder;
  if (!config->folder.empty()) folder += "/" + config->folder;
  if (!is_folder(folder)) {
    throw Error({.what = "the card of data set '" + choice.name + "' names a folder that is not there",
                 .expected = "a folder " + folder + ", as data_dir says",
                 .where = choice.folder + "/README.md",
                 .fix = "fetch the whole data set, or correct its card",
                 .code = ExitCode::usage});
  }
  const std::vector<std::string> all = files_below(folder);
  if (config->splits.empty()) return below(folder, by_names(all));
  std::vector<Split> splits;
  for (const CardSplit& split : config->splits) splits.push_back({split.name, matched(all, split)});
  return below(folder, std::move(splits));
}

namespace {

// Logs row files that belong to no split, for example notes.jsonl in the folder of train.jsonl. `datasets`
// does not read them either. A card lists its files, so nothing is logged.
void note_files_without_split(const SplitChoice& choice, const std::vector<Split>& splits) {
  if (chosen_config(card_configs(choice.folder), choice)) return;
  const std::string folder = folder_of_subset(choice);
  std::set<std::string> known;
  for (const Split& split : splits) known.insert(split.files.begin(), split.files.end());
  std::vector<std::string> others;
  for (const std::string& file : files_below(folder)) {
    if (is_row_file(file) && !known.contains(folder + "/" + file)) others.push_back(file);
  }
  if (others.empty()) return;
  const std::size_t count = others.size();
  if (count > 3) others.resize(3), others.push_back("…");
  log::info("data set '" + choice.name + "': files that are in no split are not read (" +
            std::to_string(count) + "): " + listed(others));
}

}  // namespace

std::vector<std::string> files_of_split(const SplitChoice& choice) {
  const std::vector<Split> splits = splits_of(choice);
  if (splits.empty()) return {};
  std::vector<std::string> wanted{choice.split};
  if (choice.split.empty()) {
    wanted = choice.evaluates ? std::vector<std::string>{"validation", "test", "train"}
                              : std::vector<std::string>{"train"};
  }
  Split chosen;
  for (const std::string& name : wanted) {
    const Split* found = chosen.name.empty() ? find(splits, name) : nullptr;
    if (found != nullptr) chosen = *found;
  }
  if (chosen.name.empty() && !choice.split.empty()) chosen = named_in_files(splits, choice.split);
  if (chosen.name.empty() || (chosen.files.empty() && find(splits, chosen.name) == nullptr))
    no_split(choice, wanted.front(), splits);
  if (chosen.files.empty()) {
    throw Error({.what = "split '" + chosen.name + "' of data set '" + choice.name + "' has no files",
                 .expected = "the files that " + choice.folder + "/README.md names for it",
                 .found = "none of them in the folder",
                 .where = choice.where,
                 .fix = "fetch the whole data set, or correct its card",
                 .code = ExitCode::usage});
  }
  std::vector<std::string> others;
  for (const Split& split : splits) {
    if (split.name != chosen.name) others.push_back(counted(split));
  }
  if (!others.empty()) {
    log::info("data set '" + choice.name + "': split " + counted(chosen) + " is read, not " + listed(others),
              log::Importance::data);
  }
  note_files_without_split(choice, splits);
  return chosen.files;
}

}  // namespace octet::data
