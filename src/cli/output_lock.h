// Lock for output files and folders, so that two commands do not write the same output.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "octet/base/files.h"
#include "octet/files/folder_lock.h"

namespace octet::cli {

/// Locks the file or folder `path` with a lock file in its parent folder, which is created if needed. Throws
/// Error (busy) that names the process of another command that holds the lock.
inline std::unique_ptr<const files::FolderLock> lock_output(const std::string& path) {
  // The path of a folder may end with "/".
  const std::filesystem::path whole = std::filesystem::path(path + "/.").lexically_normal().parent_path();
  if (whole.has_parent_path()) make_folders(whole.parent_path().string());
  return std::make_unique<const files::FolderLock>(whole.string(),
                                                   files::FolderLockOptions{.held = files::Held::file});
}

}  // namespace octet::cli
