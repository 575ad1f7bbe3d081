// A folder for one test, removed at its end.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>

#include "octet/base/error.h"
#include "support/temporary_folder.h"

namespace octet {

using Scratch = test::TemporaryFolder;

inline void put(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

/// Returns the message of the Error that `work` throws, or "" if it throws none.
template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace octet

/// Expects that `work` throws an Error with a message that contains `part`.
#define EXPECT_ERROR(part, work) EXPECT_PRED_FORMAT2(testing::IsSubstring, part, error_of([&] { work; }))
