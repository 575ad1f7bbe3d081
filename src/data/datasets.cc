// Which files a data set is made of.
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

bool is_data_file(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".json" || ending == ".jsonl" || ending == ".ndjson" || ending == ".txt";
}

// Files of a path: itself, or what a folder holds, by name.
std::vector<std::string> files_of(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file() && is_data_file(entry.path())) files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return files;
}

bool looks_like_path(const std::string& name) {
  return name.find('/') != std::string::npos || is_data_file(name) ||
         name.find_first_of("*?[") != std::string::npos;
}

// dataset_info.json of a folder, or an empty object.
Json read_info(const std::string& folder, std::string* path) {
  *path = folder + "/dataset_info.json";
  return path_exists(*path) ? read_json(*path) : Json::object();
}

[[noreturn]] void unknown_dataset(const std::string& name, const Json& info, const std::string& info_path,
                                  const DataOptions& options) {
  std::vector<std::string> names;
  for (const auto& [key, value] : info.items()) names.push_back(key);
  const std::string near = nearest_name(name, names);
  throw Error({.what = "data set '" + name + "' is not known",
               .expected = "a name in " + info_path + ", a path, or a glob",
               .found = names.empty() ? "no such file, and no dataset_info.json"
                                      : "no such name among " + std::to_string(names.size()),
               .where = "configuration key '" + options.key + "'",
               .fix = near.empty() ? "check the path, or dataset_dir" : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

DataSource from_paths(const std::string& name, const std::vector<std::string>& paths) {
  DataSource source;
  source.name = name;
  for (const auto& path : paths) {
    for (const auto& file : files_of(path)) source.files.push_back(open_rows(file));
  }
  for (const auto& file : source.files) source.rows += file->size();
  return source;
}

// An entry of dataset_info.json: where its rows are and how they are read.
DataSource from_entry(const std::string& name, const Json& entry, const std::string& info_path,
                      const DataOptions& options) {
  const std::string where = info_path + ": " + name;
  const std::string file = json_string(entry, "file_name", "", where);
  std::string found_hub;
  for (const char* hub : {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}) {
    if (file.empty() && entry.contains(hub)) found_hub = hub;
  }
  if (file.empty()) {
    throw Error(
        {.what = "data set '" + name + "' has no file on this machine",
         .expected = "\"file_name\" with a file or folder below " + options.dataset_dir,
         .found = found_hub.empty() ? "no file_name" : "only '" + found_hub + "'; nothing is downloaded",
         .where = where,
         .fix = "download it and give its file_name",
         .code = ExitCode::usage});
  }
  const std::string path = file.starts_with('/') ? file : options.dataset_dir + "/" + file;
  DataSource source = from_paths(name, {path});
  source.format = format_of_entry(entry, name, info_path);
  const std::int64_t picks = json_int(entry, "num_samples", 0, 1, INT64_C(1) << 40, where);
  if (picks > 0 && source.rows > 0) {
    // A random choice, every row once before any row twice.
    const auto rows = static_cast<std::uint64_t>(source.rows);
    for (std::int64_t i = 0; i < picks; ++i) {
      const auto u = static_cast<std::uint64_t>(i);
      source.picks.push_back(static_cast<std::int64_t>(
          permute(u % rows, rows, hash64(name, options.seed), static_cast<std::uint32_t>(u / rows) + 1u)));
    }
    source.rows = picks;
  }
  return source;
}

}  // namespace

std::vector<DataSource> open_datasets(const DataOptions& options) {
  std::string info_path;
  const Json info = read_info(options.dataset_dir, &info_path);
  std::vector<DataSource> sources;
  for (const std::string& name : options.dataset) {
    DataSource source;
    if (const auto entry = info.find(name); entry != info.end()) {
      source = from_entry(name, *entry, info_path, options);
    } else {
      std::vector<std::string> paths;
      for (const std::string& candidate : {name, options.dataset_dir + "/" + name}) {
        if (paths.empty() && path_exists(candidate)) paths = {candidate};
        if (paths.empty() && looks_like_path(name)) paths = expand_glob(candidate);
      }
      if (paths.empty()) unknown_dataset(name, info, info_path, options);
      source = from_paths(name, paths);
      if (source.rows > 0) {
        const auto first = std::ranges::find_if(source.files, [](const auto& f) { return f->size() > 0; });
        source.format = detect_format((*first)->row(0), (*first)->where(0));
      }
    }
    if (source.rows == 0) {
      throw Error({.what = "data set '" + name + "' is empty",
                   .expected = "at least one row",
                   .found = std::to_string(source.files.size()) + " files without rows",
                   .where = source.files.empty() ? "configuration key '" + options.key + "'" : name,
                   .fix = "check the file",
                   .code = ExitCode::usage});
    }
    if (options.max_samples) source.rows = std::min(source.rows, *options.max_samples);
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace octet::data
