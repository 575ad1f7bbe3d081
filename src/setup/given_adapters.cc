// The adapters of a configuration or a command line, and the use of each.
#include <algorithm>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/setup/adapters.h"

namespace octet::setup {

std::vector<std::string> adapter_folders(const std::string& names) {
  std::vector<std::string> folders;
  for (const std::string& piece : split(names, ',')) {
    const std::string folder(trim(piece));
    if (!folder.empty()) {
      folders.push_back(folder);
      continue;
    }
    throw Error({.what = "a list of adapters has an empty name",
                 .expected = "folders, with a comma between two",
                 .found = "'" + names + "'",
                 .where = "adapter_name_or_path",
                 .fix = "remove the extra comma",
                 .code = ExitCode::usage});
  }
  return folders;
}

GivenAdapters given_adapters(const config::TuningKeys& config) {
  GivenAdapters given;
  if (!trains_adapters(config) || !config.adapter_name_or_path) return given;
  given.added = adapter_folders(*config.adapter_name_or_path);
  if (config.create_new_adapter) return given;
  given.continued = given.added.back();
  given.added.pop_back();
  return given;
}

std::vector<runtime::AddedAdapter> added_adapters(const std::vector<std::string>& folders,
                                                  const model::Architecture& base) {
  std::vector<runtime::AddedAdapter> added;
  for (const std::string& folder : folders) {
    model::Architecture architecture = base;
    architecture.tuning = tuning_of(read_adapter_folder(folder), base);
    added.push_back({.folder = folder, .architecture = std::move(architecture)});
  }
  return added;
}

NamedModel named_model(const std::string& path, const std::vector<std::string>& adapters) {
  NamedModel model{.folder = path, .adapters = adapters};
  const std::string description = path + "/adapter_config.json";
  if (path_exists(path + "/config.json") || !path_exists(description)) return model;
  model.folder = json_string(read_json(description), "base_model_name_or_path", "", description);
  model.adapters.insert(model.adapters.begin(), path);
  if (path_exists(model.folder + "/config.json")) return model;
  throw Error({.what = "the base model of the adapter does not exist",
               .expected = "base_model_name_or_path: a folder with config.json, weights and tokenizer",
               .found = model.folder.empty() ? "no name" : model.folder,
               .where = description,
               .fix = "fetch the base and name its folder: trainer generate BASE --adapter " + path +
                      ", trainer export " + path + " OUT --merge --model BASE",
               .code = ExitCode::usage});
}

}  // namespace octet::setup
