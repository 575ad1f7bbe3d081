// Readers of rows, one per kind of file, and the bytes of a file of rows.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/base/files.h"
#include "octet/data/dataset.h"

namespace octet::data {

// The contents of a file of rows: the mapped file, or the mapped result of decompressing it.

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

/// Opens a CSV file. The first record names the columns. Cells are quoted as in RFC 4180 and separated by
/// `separator`. A cell is a text; an empty cell without quotes is null.
std::unique_ptr<RowReader> open_csv(const std::string& path, char separator);

/// Opens a JSON text: a list, a list below a key of one object, or objects that span several lines. Rows are
/// located by brackets and parsed one by one, so the whole file is never parsed at once.
std::unique_ptr<RowReader> open_json(const std::string& path);
/// Whether a JSON text holds one object per line, and not one of the shapes of open_json().
bool is_json_lines(std::string_view text);

/// Opens a Parquet file or an Arrow file or stream (`ending`: "parquet", "arrow", "feather") with Apache
/// Arrow's library. Without that library in the build, throws an Error that names the command to convert the
/// file.
std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending);

}  // namespace octet::data
