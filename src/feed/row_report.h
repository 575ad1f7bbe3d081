// Log lines about rows that were left out, truncated, or not read completely.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "octet/data/encoded.h"

namespace octet::feed {

/// An event of some rows.
struct Complaint {
  std::string rows;       ///< "1,200 rows"
  std::string event;      ///< "were cut to cutoff_len"; the same for any number of rows
  bool unusable = false;  ///< the rows cannot be read or used
};

/// Returns the events of rows in the order of the log.
std::vector<Complaint> complaints(const data::EncodingCounts& counts);

/// Reports the windows of a stream: an event at the first window that has it, and the counts of all windows
/// at the end. Thread-safe.
class WindowReport {
 public:
  /// Adds a window; each window counts once. Logs its new events.
  void add(std::int64_t window, const data::EncodingCounts& counts);
  /// Logs the counts of all windows if there was more than one.
  void end() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::int64_t> windows_;
  std::set<std::string> events_;
  data::EncodingCounts all_;
};

/// Logs counts; `what` is the name of the rows.
void report(const data::EncodingCounts& counts, const std::string& what);

}  // namespace octet::feed
