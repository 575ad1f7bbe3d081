// A folder for one test, removed at its end.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "octet/base/error.h"

namespace octet::checkpoint {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "octet-checkpoint-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("cannot make a scratch folder");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline void put(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

/// The message of the Error that `work` throws; "" when it throws none.
template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace octet::checkpoint

/// `work` throws an Error whose message names `part`.
#define EXPECT_ERROR(part, work) \
  EXPECT_PRED_FORMAT2(testing::IsSubstring, part, octet::checkpoint::error_of([&] { work; }))
