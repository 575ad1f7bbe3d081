// Finds the files and the row format of each data set.
#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/model_file.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "splits.h"

namespace octet::data {

// The files of a data set.

/// Returns `path` if it is a file. Otherwise returns the files of the configured split in the folder `path`
/// (splits.h). `name`: the data set in the configuration.
std::vector<std::string> files_of_path(const std::string& path, const std::string& name,
                                       const DataOptions& options);

/// Returns the files that a shell pattern matches, sorted by name, without metadata files of Hugging Face.
std::vector<std::string> expand_glob(const std::string& pattern);

/// Whether a name means a file, a folder or a pattern rather than an entry of dataset_info.json.
bool looks_like_path(const std::string& name);

/// Returns the files of an entry of dataset_info.json: its file, or the files of its split in its folder
/// (below `folder` and `subset`). `file` is its file_name, `where` names the entry in messages.
std::vector<std::string> files_of_entry(const Json& entry, const std::string& name, const std::string& file,
                                        const std::string& where, const DataOptions& options);

namespace {

namespace fs = std::filesystem;

// Whether a file is metadata that Hugging Face's save_to_disk writes next to files of rows.
bool is_metadata(const fs::path& path) {
  static constexpr std::array kDescriptions{"dataset_info.json", "state.json", "dataset_dict.json"};
  return std::ranges::find(kDescriptions, path.filename().string()) != kDescriptions.end();
}

// Returns `path`. Warns if the configuration names a split: a single file has no splits, so all rows are
// read.
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
      if (!is_metadata(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
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

namespace {

// Returns the contents of a folder's dataset_info.json, or an empty object if there is none.
Json read_info(const std::string& folder, std::string* path) {
  *path = folder + "/dataset_info.json";
  return path_exists(*path) ? read_json(*path) : Json::object();
}

[[noreturn]] void unknown_dataset(const std::string& name, const Json& info, const std::string& info_path,
                                  const DataOptions& options) {
  std::vector<std::string> names;
  for (const auto& [key, value] : info.items()) names.push_back(key);
  const std::string near = nearest_name(name, names);
  const bool on_hub = std::ranges::count(name, '/') == 1 && name.find('/') > 0 && !is_data_file(name);
  throw Error(
      {.what = "data set '" + name + "' is not known",
       .expected = "a name in " + info_path + ", a path, a glob, or a data set in Hugging Face's cache",
       .found = names.empty() ? "no such file, and no dataset_info.json"
                              : "no such name among " + std::to_string(names.size()),
       .where = "configuration key '" + options.key + "'",
       .fix = !near.empty() ? "did you mean '" + near + "'?"
              : on_hub      ? "check the path, or fetch it (hf download --repo-type dataset " + name + ")"
                            : "check the path, or dataset_dir",
       .code = ExitCode::usage});
}

DataSource from_files(const std::string& name, const std::vector<std::string>& files) {
  DataSource source;
  source.name = name;
  for (const auto& file : files) source.files.push_back(open_rows(file));
  source.rows = source.file_rows();
  return source;
}

DataSource from_paths(const std::string& name, const std::vector<std::string>& paths,
                      const DataOptions& options) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    for (auto& file : files_of_path(path, name, options)) files.push_back(std::move(file));
  }
  return from_files(name, files);
}

// Returns the first readable rows. They show which columns a set has.
std::vector<Json> first_rows(const DataSource& source) {
  std::vector<Json> rows;
  std::int64_t tries = 0;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < file->size() && tries < 100; ++i, ++tries) {
      try {
        rows.push_back(file->row(i));
      } catch (const Error&) {
        // Counted and reported when the rows are encoded.
      }
    }
  }
  return rows;
}

// Returns the format of a set if the configuration names its columns.
RowFormat named_format(const DataSource& source, const DataOptions& options) {
  const std::vector<Json> rows = first_rows(source);
  return format_of_columns(options.columns, rows.empty() ? Json() : rows.front(), options.answers);
}

// Detects the format of a data set from the first readable row of each file. For data sets without an entry
// in dataset_info.json and without configured columns.
RowFormat recognised_format(const std::string& name, const DataSource& source, Answers answers) {
  const auto detect = answers == Answers::pairs    ? detect_pairs
                      : answers == Answers::judged ? detect_judged
                                                   : detect_format;
  std::optional<RowFormat> format;
  std::string first;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < std::min<std::int64_t>(file->size(), 100); ++i) {
      Json row;
      try {
        row = file->row(i);
      } catch (const Error&) {
        continue;  // counted and reported when the rows are encoded
      }
      RowFormat found = detect(row, file->where(i));
      if (!format) {
        format = found;
        first = file->path();
        break;
      }
      // A file may lack the column with histories.
      if (format->history.empty()) format->history = found.history;
      found.history = format->history;
      if (*format != found) {
        throw Error({.what = "the files of data set '" + name + "' have different columns",
                     .expected = "rows as in " + first,
                     .found = "other columns",
                     .where = file->where(i),
                     .fix = "name the files as separate data sets, with commas between them",
                     .code = ExitCode::usage});
      }
      break;
    }
  }
  if (format) return *format;
  // No row is readable. The error of the first row is the most useful message.
  const auto any = std::ranges::find_if(source.files, [](const auto& f) { return f->size() > 0; });
  return detect((*any)->row(0), (*any)->where(0));
}

bool holds_messages(const RowFormat& format) {
  return format.kind == RowFormat::Kind::sharegpt || format.kind == RowFormat::Kind::openai;
}

// Returns the optional columns that an entry of dataset_info.json may name.
std::vector<std::string> other_columns(const RowFormat& f) {
  const bool asks = !holds_messages(f) && f.kind != RowFormat::Kind::text;
  return {f.system, f.tools, asks ? f.query : "", asks ? f.history : ""};
}

constexpr const char* kNamedByKeys =
    "name the column by messages_column, or prompt_column and response_column";
constexpr const char* kNamedByEntry = "name the column in \"columns\"";

// Throws Error with `fix` if no row has a required column. Warns about each of the columns `others` that no
// row has. Both messages suggest the nearest name. Reads only the first rows.
void check_columns(const DataSource& source, const std::string& where, const char* fix,
                   const std::vector<std::string>& others) {
  const RowFormat& f = source.format;
  const bool messages = holds_messages(f), text = f.kind == RowFormat::Kind::text;
  std::vector<std::string> needed = messages || text || f.has_pairs()
                                        ? std::vector{messages ? f.messages : f.prompt}
                                        : std::vector{f.prompt, f.response};
  if (f.has_pairs()) {
    // Both answers may be whole conversations.
    std::erase(needed, "");
    needed.insert(needed.end(), {f.chosen, f.rejected});
  }
  if (f.is_judged()) needed.push_back(f.judgement);
  std::set<std::string> present;
  for (const Json& row : first_rows(source)) {
    if (!row.is_object()) continue;
    for (const auto& [key, value] : row.items()) present.insert(key);
  }
  if (present.empty()) return;  // all rows are broken; the encoder reports them
  std::string names;
  for (const auto& name : present) names += (names.empty() ? "'" : ", '") + name + "'";
  for (const std::string& column : needed) {
    if (present.contains(column)) continue;
    const std::string near = nearest_name(column, {present.begin(), present.end()});
    throw Error({.what = column.empty() ? "no column is named for the texts of a data set"
                                        : "a data set has no column '" + column + "'",
                 .expected = "a column of its rows",
                 .found = names,
                 .where = where,
                 .fix = near.empty() ? fix : "did you mean '" + near + "'?",
                 .code = ExitCode::usage});
  }
  for (const std::string& column : others) {
    if (column.empty() || present.contains(column) || column == RowFormat{}.query) continue;
    const std::string near = nearest_name(column, {present.begin(), present.end()});
    log::warn(where + ": no column '" + column + "' in the first rows" +
                  (near.empty() ? "" : "; did you mean '" + near + "'?"),
              log::Importance::training);
  }
}

// Returns the folder of a data set in Hugging Face's cache; "" if it is not there.
std::string hub_files(const std::string& name) {
  return hub_snapshot(hub_folder(), HubKind::dataset, name);
}

// Opens the data set of an entry of dataset_info.json.
DataSource from_entry(const std::string& name, const Json& entry, const std::string& info_path,
                      const DataOptions& options) {
  const std::string where = info_path + ": " + name;
  std::string file = json_string(entry, "file_name", "", where);
  const std::string on_hub = json_string(entry, "hf_hub_url", "", where);
  if (file.empty() && !on_hub.empty()) file = hub_files(on_hub);
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
         .fix = on_hub.empty() ? "download it and give its file_name"
                               : "fetch it into Hugging Face's cache (hf download --repo-type dataset " +
                                     on_hub + "), or give its file_name",
         .code = ExitCode::usage});
  }
  const RowFormat format = format_of_entry(entry, name, info_path, options.answers);
  DataSource source = from_files(name, files_of_entry(entry, name, file, where, options));
  source.format = format;
  check_columns(source, where, kNamedByEntry, other_columns(format));
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
  const auto in_files = static_cast<std::uint64_t>(file_rows());
  const auto u = static_cast<std::uint64_t>(i);
  return static_cast<std::int64_t>(
      permute(u % in_files, in_files, sample_seed, static_cast<std::uint32_t>(u / in_files) + 1u));
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
      if (const std::string fetched = paths.empty() ? hub_files(name) : ""; !fetched.empty())
        paths = {fetched};
      if (paths.empty()) unknown_dataset(name, info, info_path, options);
      source = from_paths(name, paths, options);
      const bool named = !options.columns.messages.empty() || !options.columns.prompt.empty();
      if (source.rows > 0 && named) {
        source.format = named_format(source, options);
        // The columns of system messages and tools are optional.
        check_columns(source, name, kNamedByKeys, {});
      } else if (source.rows > 0) {
        source.format = recognised_format(name, source, options.answers);
      }
    }
    if (source.rows == 0) {
      throw Error({.what = "data set '" + name + "' is empty",
                   .expected = "at least one row",
                   .found = std::to_string(source.files.size()) + " files without rows",
                   .where = source.files.empty() ? "configuration key '" + options.key + "'" : name,
                   .fix = source.files.empty() ? "put data files into it" : "check the file",
                   .code = ExitCode::usage});
    }
    if (options.max_samples) source.rows = std::min(source.rows, *options.max_samples);
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace octet::data
