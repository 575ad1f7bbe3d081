// incidents.jsonl: what befell a job, a line each.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"

namespace octet::supervise {

/// The file of an output folder. Lines that are there stay as they are. It appears whole or not at all, as
/// soon as the folder does; what a disk does not take is kept and written with what follows.
class Incidents {
 public:
  explicit Incidents(const std::string& output_dir);
  void add(Json row);
  /// Rows that were added, to be changed; write() then.
  Json& row(std::size_t number) { return rows_.at(number); }
  std::size_t size() const { return rows_.size(); }
  void write();

 private:
  std::string folder_, before_;
  std::vector<Json> rows_;
  bool told_ = false;
};

}  // namespace octet::supervise
