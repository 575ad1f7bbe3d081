#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "support/temporary_folder.h"

namespace octet::fuzz {

/// A folder of this process for functions that read files.
inline std::string scratch_folder() {
  static const std::string folder = [] {
    const std::filesystem::path shared = "/dev/shm";
    const auto parent = std::filesystem::exists(shared) ? shared : std::filesystem::temp_directory_path();
    static const test::TemporaryFolder made("fuzz", parent);
    return made.path();
  }();
  return folder;
}

/// Writes a file of that folder and returns its path.
inline std::string scratch_file(const std::string& name, std::string_view bytes) {
  const std::string path = scratch_folder() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace octet::fuzz
