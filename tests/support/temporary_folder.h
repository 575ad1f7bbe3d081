// A folder for the files of a test.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace octet::test {

/// A new, empty folder that disappears with this object. Its name is new, even if a killed
/// process with the same number has left a folder.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string_view name = "test",
                           const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / ("octet_" + std::string(name) + "_XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace octet::test
