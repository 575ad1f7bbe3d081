// Which files a data set is made of.
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

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

// Files of a path: itself, or what a folder holds, by name.
std::vector<std::string> files_of(const std::string& path) {
  if (!is_folder(path)) return {path};
  std::vector<std::string> files;
  std::error_code code;
  for (fs::directory_iterator at(path, code), end; !code && at != end; at.increment(code)) {
    std::error_code none;
    const bool rows = !describes_rows(at->path()) && is_data_file(at->path().filename().string());
    if (rows && at->is_regular_file(none)) files.push_back(at->path().string());
  }
  if (code) throw Error({.what = "a folder of data cannot be read", .found = code.message(), .where = path});
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
  source.rows = source.file_rows();
  return source;
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

// Files of an entry: its file, or those of its folder (below `folder` and `subset`) that belong to its split.
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
                 .code = ExitCode::usage});
  }
  const std::vector<std::string> all = files_of(path);
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

// The format of a set that nothing describes, by the first row of each file.
RowFormat recognised_format(const std::string& name, const DataSource& source) {
  std::optional<RowFormat> format;
  std::string first;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(file->size(), 100); ++i) {
      Json row;
      try {
        row = file->row(i);
      } catch (const Error&) {
        continue;  // counted and named when the rows are encoded
      }
      const RowFormat found = detect_format(row, file->where(i));
      if (!format) {
        format = found;
        first = file->path();
      } else if (*format != found) {
        throw Error({.what = "the files of data set '" + name + "' have different columns",
                     .expected = "rows as in " + first,
                     .found = "others",
                     .where = file->where(i),
                     .fix = "name the files as data sets of their own, separated by commas",
                     .code = ExitCode::usage});
      }
      break;
    }
  }
  if (format) return *format;
  // With nothing but broken rows the first one's own message says most.
  const auto any = std::ranges::find_if(source.files, [](const auto& f) { return f->size() > 0; });
  return detect_format((*any)->row(0), (*any)->where(0));
}

// The first rows that can be read: what columns a set has.
std::vector<Json> first_rows(const DataSource& source) {
  std::vector<Json> rows;
  std::int64_t tries = 0;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < file->size() && tries < 100; ++i, ++tries) {
      try {
        rows.push_back(file->row(i));
      } catch (const Error&) {
        // Counted and named when the rows are encoded.
      }
    }
  }
  return rows;
}

// A set needs the columns that hold its answers; of others that no row has, the nearest name is told.
void check_columns(const DataSource& source, const std::string& where) {
  const RowFormat& f = source.format;
  const bool messages = f.kind == RowFormat::Kind::sharegpt || f.kind == RowFormat::Kind::openai;
  const bool text = f.kind == RowFormat::Kind::text;
  const std::vector<std::string> needed = messages ? std::vector{f.messages}
                                          : text   ? std::vector{f.prompt}
                                                   : std::vector{f.prompt, f.response};
  std::set<std::string> there;
  for (const Json& row : first_rows(source)) {
    if (!row.is_object()) continue;
    for (const auto& [key, value] : row.items()) there.insert(key);
  }
  if (there.empty()) return;  // nothing but broken rows, which are told of elsewhere
  std::string names;
  for (const auto& name : there) names += (names.empty() ? "'" : ", '") + name + "'";
  for (const std::string& column : needed) {
    if (there.contains(column)) continue;
    const std::string near = nearest_name(column, {there.begin(), there.end()});
    throw Error({.what = column.empty() ? "a data set does not say which column holds its texts"
                                        : "a data set has no column '" + column + "'",
                 .expected = "a name in \"columns\" that its rows have",
                 .found = names,
                 .where = where,
                 .fix = near.empty() ? "name the column in \"columns\"" : "did you mean '" + near + "'?",
                 .code = ExitCode::usage});
  }
  const std::vector<std::string> others{f.system, f.tools, messages || text ? "" : f.query,
                                        messages || text ? "" : f.history};
  for (const std::string& column : others) {
    if (column.empty() || there.contains(column) || column == RowFormat{}.query) continue;
    const std::string near = nearest_name(column, {there.begin(), there.end()});
    log::warn(where + ": no column '" + column + "' in the first rows" +
              (near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
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
  const RowFormat format = format_of_entry(entry, name, info_path);
  DataSource source = from_paths(name, files_of_entry(entry, file, where, options));
  source.format = format;
  check_columns(source, where);
  const std::int64_t picks = json_int(entry, "num_samples", 0, 1, INT64_C(1) << 40, where);
  if (picks > 0 && source.rows > 0) {
    source.sampled = true;
    source.sample_seed = hash64(name, options.seed);
    source.rows = picks;
  }
  return source;
}

}  // namespace

std::int64_t DataSource::file_rows() const {
  std::int64_t count = 0;
  for (const auto& file : files) count += file->size();
  return count;
}

std::int64_t DataSource::row_at(std::int64_t i) const {
  if (!sampled) return i;
  const auto there = static_cast<std::uint64_t>(file_rows());
  const auto u = static_cast<std::uint64_t>(i);
  return static_cast<std::int64_t>(
      permute(u % there, there, sample_seed, static_cast<std::uint32_t>(u / there) + 1u));
}

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
      if (source.rows > 0) source.format = recognised_format(name, source);
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
