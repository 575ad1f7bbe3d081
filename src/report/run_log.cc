#include "run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"

namespace octet::report {
namespace {

// Whether a row is valid: an object with a whole number in range as current_steps.
bool is_row(const Json& row) {
  if (!row.is_object()) return false;
  const double step = number_of(row, "current_steps");
  return step >= 0 && step < 9e15 && step == std::floor(step);
}

}  // namespace

double number_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : NAN;
}

RunLog::RunLog(const std::string& path, std::int64_t first_step) : path_(path) {
  std::string kept;
  if (first_step > 0 && path_exists(path)) {
    for (const auto& line : split(read_file(path), '\n')) {
      if (trim(line).empty()) continue;
      Json row;
      try {
        row = parse_json(line, path, false, 16);
      } catch (const Error&) {
        ++broken_;
        continue;
      }
      if (!is_row(row)) {
        ++broken_;
      } else if (number_of(row, "current_steps") <= static_cast<double>(first_step)) {
        kept += line + "\n";
        rows_.push_back(std::move(row));
      }
    }
  }
  write_file_atomically(path, kept);
  file_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0)
    throw Error({.what = "the log cannot be opened",
                 .found = std::strerror(errno),
                 .where = path,
                 .fix = "check the permissions of the folder and the free space of its disk",
                 .code = exit_code_of(errno)});
}

RunLog::~RunLog() {
  if (file_ >= 0) close(file_);
}

void RunLog::append(Json row) {
  waiting_ += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  rows_.push_back(std::move(row));
  const bool waited = rows_waiting_ > 0;
  ++rows_waiting_;
  if (flush() > 0 && !waited) {
    log::warn(path_ + " cannot be written (" + std::strerror(errno) +
              "): its rows wait in memory until there is room");
  } else if (waited && rows_waiting_ == 0) {
    log::info(path_ + " can be written again: no row is missing");
  }
}

std::int64_t RunLog::flush() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t n = ::write(file_, waiting_.data() + done, waiting_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  waiting_.erase(0, done);
  rows_waiting_ = std::count(waiting_.begin(), waiting_.end(), '\n');
  return rows_waiting_;
}

// Failures are ignored: a checkpoint is worth more than the rows, so no save is given up for them.
void RunLog::sync() const {
  (void)::fdatasync(file_);
}

}  // namespace octet::report
