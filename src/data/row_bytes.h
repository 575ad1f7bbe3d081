// The contents of a file of rows: the mapped file, or the mapped result of decompressing it.
#pragma once

#include <string>
#include <string_view>

#include "octet/base/files.h"

namespace octet::data {

/// Limit on the bytes of a row. A parsed row takes up to thirty times as much memory.
inline constexpr std::size_t kMostRowBytes = std::size_t{16} << 20;

class RowBytes {
 public:
  /// Maps a file. If the name ends in .gz, the file is decompressed into an unlinked temporary file, which is
  /// mapped: the contents are never held in memory as a whole. Throws Error for a missing or damaged file and
  /// for a full disk.
  explicit RowBytes(const std::string& path);
  std::string_view text() const { return file_.text(); }
  /// The path as given, with ".gz".
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  MappedFile file_;
};

/// Returns the ending of a data file in lower case, without ".gz" and the dot: "jsonl" for "a/b.JSONL.gz".
/// Returns "" if there is none.
std::string data_ending(const std::string& path);

}  // namespace octet::data
