#include "dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// No for what cannot be looked at: names come from a file.
bool is_folder(const std::string& path) {
  std::error_code none;
  return fs::is_directory(path, none);
}

// Whether a file beside the rows describes them, as Hugging Face's save_to_disk writes it.
bool describes_rows(const fs::path& path) {
  static constexpr std::array kDescriptions{"dataset_info.json", "state.json", "dataset_dict.json"};
  return std::ranges::find(kDescriptions, path.filename().string()) != kDescriptions.end();
}

// Whether `word` stands in a file's name between other signs than letters and digits: "train-00000.parquet".
bool names_split(const std::string& file, const std::string& word) {
  const std::string name = fs::path(file).filename().string();
  const auto is_sign = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; };
  for (std::size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || is_sign(name[at - 1])) && (end == name.size() || is_sign(name[end]))) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> files_of(const std::string& path) {
  if (!is_folder(path)) return {path};
  std::vector<std::string> files;
  std::error_code code;
  for (fs::directory_iterator at(path, code), end; !code && at != end; at.increment(code)) {
    std::error_code none;
    const bool rows = !describes_rows(at->path()) && is_data_file(at->path().filename().string());
    if (rows && at->is_regular_file(none)) files.push_back(at->path().string());
  }
  if (code)
    throw Error({.what = "a folder of data cannot be read",
                 .found = code.message(),
                 .where = path,
                 .fix = "look at the rights of the folder",
                 .code = exit_code_of(code.value())});
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      if (!describes_rows(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
  return files;
}

bool looks_like_path(const std::string& name) {
  return name.find('/') != std::string::npos || is_data_file(name) ||
         name.find_first_of("*?[") != std::string::npos;
}

std::vector<std::string> files_of_entry(const Json& entry, const std::string& file, const std::string& where,
                                        const DataOptions& options) {
  std::string path = file.starts_with('/') ? file : options.dataset_dir + "/" + file;
  const std::string split_name = json_string(entry, "split", "train", where);
  if (split_name.find_first_of("[]+%") != std::string::npos) {
    throw Error({.what = "slices of splits are not built",
                 .found = "\"split\": \"" + split_name + "\"",
                 .where = where,
                 .fix = "name the split alone, and use num_samples or max_samples",
                 .code = ExitCode::usage});
  }
  if (!path_exists(path)) {
    throw Error({.what = "the file of a data set is not there",
                 .expected = path,
                 .where = where,
                 .fix = "check file_name and dataset_dir",
                 .code = ExitCode::usage});
  }
  if (!is_folder(path)) {
    if (split_name == "train") return {path};
    throw Error({.what = "a single file has no splits",
                 .expected = "\"split\": \"train\", or a folder with files named after their splits",
                 .found = "\"split\": \"" + split_name + "\"",
                 .where = where,
                 .fix = "remove the split, or name a folder with such files",
                 .code = ExitCode::usage});
  }
  for (const char* key : {"folder", "subset"}) {
    const std::string below = json_string(entry, key, "", where);
    if (below.empty()) continue;
    path += "/" + below;
    if (is_folder(path)) continue;
    throw Error({.what = std::string("the ") + key + " of a data set is not there",
                 .found = "no folder " + path,
                 .where = where,
                 .fix = "check the name, or remove it",
                 .code = ExitCode::usage});
  }
  std::vector<std::string> all = files_of(path);
  std::vector<std::string> chosen;
  static constexpr std::array kSplits{"train", "test", "validation", "valid", "dev", "eval"};
  bool any_named = false;
  for (const auto& candidate : all) {
    if (names_split(candidate, split_name)) chosen.push_back(candidate);
    any_named |= std::ranges::any_of(kSplits, [&](const char* s) { return names_split(candidate, s); });
  }
  // A folder whose files name no split is all training data.
  if (chosen.empty() && split_name == "train" && !any_named) return all;
  if (chosen.empty()) {
    throw Error({.what = "split '" + split_name + "' of a data set is empty",
                 .expected = "files in " + path + " with '" + split_name + "' in their names",
                 .found = with_commas(static_cast<std::int64_t>(all.size())) + " other data files",
                 .where = where,
                 .fix = "name a split that is there",
                 .code = ExitCode::usage});
  }
  return chosen;
}

}  // namespace octet::data
