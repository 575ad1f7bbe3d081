// incidents.jsonl: the incidents of a job, one per line.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::supervise {

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
