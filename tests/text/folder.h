// Tokenizer folders that tests write.
#pragma once

#include <filesystem>
#include <string>

#include "octet/base/files.h"

namespace octet::text {

/// A folder of its own, gone at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "octet_text_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    write_file_atomically(path_ + "/" + name, text);
    return path_;
  }

 private:
  std::string path_;
};

}  // namespace octet::text
