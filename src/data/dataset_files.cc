#include "dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "splits.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// Whether a file describes rows, as Hugging Face's save_to_disk writes it.
bool describes_rows(const fs::path& path) {
  static constexpr std::array kDescriptions{"dataset_info.json", "state.json", "dataset_dict.json"};
  return std::ranges::find(kDescriptions, path.filename().string()) != kDescriptions.end();
}

// Returns the file. Warns if the configuration names a split: a file has none, so all of its rows are read.
std::vector<std::string> whole_file(const std::string& path, const std::string& name,
                                    const DataOptions& options) {
  if (!options.split.empty() && options.split != "train" && !options.evaluates)
    log::warn(
        "data set " + name + ": the split '" + options.split +
            "' is not applied to a single file: all of its rows are trained; to do: name a folder with a "
            "file for each split, or leave the split out",
        log::Importance::training);
  return {path};
}

}  // namespace

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

std::vector<std::string> files_of_entry(const Json& entry, const std::string& name, const std::string& file,
                                        const std::string& where, const DataOptions& options) {
  std::string path = file.starts_with('/') ? file : options.dataset_dir + "/" + file;
  const std::string split = json_string(entry, "split", options.split, where);
  if (split.find_first_of("[]+%") != std::string::npos) {
    throw Error({.what = "slices of splits are not supported",
                 .found = "\"split\": \"" + split + "\"",
                 .where = where,
                 .fix = "name only the split, and use num_samples or max_samples",
                 .code = ExitCode::usage});
  }
  if (!path_exists(path)) {
    throw Error({.what = "the file of a data set does not exist",
                 .expected = path,
                 .where = where,
                 .fix = "check file_name and dataset_dir",
                 .code = ExitCode::usage});
  }
  if (!is_folder(path)) {
    if (!entry.contains("split")) return whole_file(path, name, options);
    if (split == "train") return {path};
    throw Error({.what = "a single file has no splits",
                 .expected = "\"split\": \"train\", or a folder with files named after their splits",
                 .found = "\"split\": \"" + split + "\"",
                 .where = where,
                 .fix = "remove the split, or name a folder with such files",
                 .code = ExitCode::usage});
  }
  if (const std::string below = json_string(entry, "folder", "", where); !below.empty()) {
    path += "/" + below;
    if (!is_folder(path)) {
      throw Error({.what = "the folder of a data set does not exist",
                   .found = "no folder " + path,
                   .where = where,
                   .fix = "check the name, or remove it",
                   .code = ExitCode::usage});
    }
  }
  return files_of_split({.folder = path,
                         .subset = json_string(entry, "subset", "", where),
                         .split = split,
                         .evaluates = options.evaluates,
                         .name = name,
                         .where = where});
}

std::vector<std::string> files_of_path(const std::string& path, const std::string& name,
                                       const DataOptions& options) {
  if (!is_folder(path)) return whole_file(path, name, options);
  return files_of_split({.folder = path,
                         .subset = "",
                         .split = options.split,
                         .evaluates = options.evaluates,
                         .name = name,
                         .where = "configuration key '" + options.key + "'"});
}

}  // namespace octet::data
