// Tokenizer folders that tests write.
#pragma once

#include <string>

#include "octet/base/files.h"
#include "support/temporary_folder.h"

namespace octet::text {

class TestFolder : public test::TemporaryFolder {
 public:
  TestFolder() : TemporaryFolder("text") {}
  /// Writes a file and returns the folder.
  std::string write(const std::string& name, const std::string& text) const {
    write_file_atomically(*this / name, text);
    return path();
  }
};

}  // namespace octet::text
