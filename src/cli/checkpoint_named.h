// The checkpoint that an argument of a command names.
#pragma once

#include <filesystem>
#include <string>

#include "octet/base/files.h"
#include "octet/checkpoint/folder.h"

namespace octet::cli {

/// Whether `path` is a checkpoint, by its files or its name. A checkpoint with missing files counts; opening
/// it reports them.
inline bool is_checkpoint(const std::string& path) {
  if (path_exists(path + "/manifest.json") || path_exists(path + "/checkpoint.h5")) return true;
  const std::filesystem::path folder = std::filesystem::path(path + "/.").lexically_normal().parent_path();
  return folder.filename().string().starts_with("checkpoint-");
}

/// Returns the newest valid checkpoint in the output folder of a run. Returns `path` itself if it is a
/// checkpoint or contains none.
inline std::string checkpoint_of_run(const std::string& path) {
  std::error_code none;
  const bool holds_some = !is_checkpoint(path) && std::filesystem::is_directory(path, none) &&
                          !checkpoint::list_checkpoints(path).empty();
  return holds_some ? checkpoint::resolve_checkpoint(path) : path;
}

}  // namespace octet::cli
