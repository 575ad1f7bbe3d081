// trainer_log.jsonl: one JSON object per line, flushed after each row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::report {

class RunLog {
 public:
  /// Keeps the rows of an earlier run up to `first_step` (none for 0). Drops later rows and a partial last
  /// line of a killed run. Opens the file for appending. Throws Error.
  RunLog(const std::string& path, std::int64_t first_step);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Appends a row. A full or failing disk does not end the run: rows then wait in memory until a later
  /// append() or flush() writes them. Both events are logged.
  void append(Json row);
  /// Tries to write the waiting rows. Returns how many rows still wait.
  std::int64_t flush();
  /// Blocks until the written rows would survive a power failure, if the disk allows it. Thread-safe with
  /// append().
  void sync() const;
  const std::vector<Json>& rows() const { return rows_; }
  /// Returns the number of dropped unreadable lines.
  int broken() const { return broken_; }

 private:
  std::string path_;
  int file_ = -1;
  int broken_ = 0;
  std::vector<Json> rows_;
  std::string waiting_;  ///< bytes not yet written; may begin within a row
  std::int64_t rows_waiting_ = 0;
};

/// Returns the value of `key` in `row` as a number; NaN if it is absent, null or not a number.
double number_of(const Json& row, const char* key);

}  // namespace octet::report
