#include "supervisor_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/report/number.h"

namespace octet::supervise {

std::string seconds_text(double seconds) {
  return report::python_number(seconds, 3) + " s";
}

std::string time_text() {
  char text[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  if (::gmtime_r(&now, &utc) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

void show(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

Incidents::Incidents(const std::string& output_dir) : folder_(output_dir) {
  constexpr std::int64_t kMost = INT64_C(1) << 28;
  const std::string path = folder_ + "/incidents.jsonl";
  if (!path_exists(path)) return;
  try {
    before_ = read_regular_file(path, kMost);
    if (!before_.empty() && before_.back() != '\n') before_ += '\n';
  } catch (const Error& e) {
    throw Error({.what = "the record of earlier incidents cannot be read",
                 .found = e.what(),
                 .fix = "move incidents.jsonl out of the output folder, and start again",
                 .code = ExitCode::usage});
  }
}

void Incidents::add(Json row) {
  rows_.push_back(std::move(row));
  write();
}

void Incidents::write() {
  if (!path_exists(folder_)) return;
  std::string text = before_;
  for (const Json& row : rows_) text += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  try {
    write_file_atomically(folder_ + "/incidents.jsonl", text);
    told_ = false;
  } catch (const Error& e) {
    if (!std::exchange(told_, true)) log::warn(std::string("incidents.jsonl is not up to date: ") + e.what());
  }
}

}  // namespace octet::supervise
