// trainer_log.jsonl: one JSON object a line, flushed by the row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::report {

class RunLog {
 public:
  /// Keeps the rows of an earlier run up to `first_step` (none with 0), drops the others and a last line that
  /// a kill cut short, and opens the file for appending. Throws Error.
  RunLog(const std::string& path, std::int64_t first_step);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Writes a row whole. A disk that takes nothing does not end the run: rows wait in memory, which is said
  /// when it begins and when they are written, with a later row or by flush().
  void append(Json row);
  /// Tries to write what waits. Returns how many rows still do.
  std::int64_t flush();
  /// Returns when rows that were written would outlive a loss of power, as far as the disk takes them. May be
  /// called on another thread beside append().
  void sync() const;
  const std::vector<Json>& rows() const { return rows_; }
  /// Lines that could not be read and were dropped.
  int broken() const { return broken_; }

 private:
  std::string path_;
  int file_ = -1;
  int broken_ = 0;
  std::vector<Json> rows_;
  std::string waiting_;  ///< bytes of rows that the disk has not taken; may begin within a row
  std::int64_t rows_waiting_ = 0;
};

/// Value of `key` in `row` as a number; NaN when it is absent, null or no number.
double number_of(const Json& row, const char* key);

}  // namespace octet::report
