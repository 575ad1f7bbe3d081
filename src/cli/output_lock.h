// Two commands at once would mix what they write into one file or folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "octet/base/files.h"
#include "octet/checkpoint/folder_lock.h"

namespace octet::cli {

/// Holds the file or folder `path` for one command, by a lock file beside it, and makes the folder around it.
/// Throws Error (busy) that names the process of another command which writes there.
inline std::unique_ptr<const checkpoint::FolderLock> lock_output(const std::string& path) {
  // A folder may be written with "/" at its end.
  const std::filesystem::path whole = std::filesystem::path(path + "/.").lexically_normal().parent_path();
  if (whole.has_parent_path()) make_folders(whole.parent_path().string());
  return std::make_unique<const checkpoint::FolderLock>(
      whole.string(), checkpoint::FolderLockOptions{.held = checkpoint::Held::file});
}

}  // namespace octet::cli
