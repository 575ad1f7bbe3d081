// The bytes behind a file of rows: the file itself, mapped, or what its compressed form holds.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/files.h"

namespace octet::data {

/// A row may have so many bytes: parsed, it takes up to thirty times as much memory.
inline constexpr std::size_t kMostRowBytes = std::size_t{16} << 20;

class RowBytes {
 public:
  /// Maps a file. One whose name ends in .gz is inflated into an unlinked file of the temporary folder, which
  /// is mapped: memory never has to hold it. Throws Error for a missing or damaged file and for a full disk.
  explicit RowBytes(const std::string& path);
  std::string_view text() const { return file_.text(); }
  /// The name the user knows.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  MappedFile file_;
};

/// Ending of a data file in lower case without ".gz" and the dot: "jsonl" for "a/b.JSONL.gz"; "" for none.
std::string data_ending(const std::string& path);

}  // namespace octet::data
