// Output of a supervisor: formats of its lines, and incidents.jsonl with the incidents of a job.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"

namespace octet::supervise {

/// Returns "3.2 s".
std::string seconds_text(double seconds);
/// Returns the current time: "2026-11-23T13:05:00Z".
std::string time_text();
/// Writes bytes to standard error. A missing reader is not an error.
void show(std::string_view bytes);

// incidents.jsonl: the incidents of a job, one per line.

/// The file in an output folder. Existing lines are kept. It is written atomically, once the folder exists.
/// If a write fails, its rows are written with the next row.
class Incidents {
 public:
  explicit Incidents(const std::string& output_dir);
  void add(Json row);
  /// Returns an added row for changes; call write() afterwards.
  Json& row(std::size_t number) { return rows_.at(number); }
  std::size_t size() const { return rows_.size(); }
  void write();

 private:
  std::string folder_, before_;
  std::vector<Json> rows_;
  bool told_ = false;
};

}  // namespace octet::supervise
