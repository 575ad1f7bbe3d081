#include "supervisor_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>

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

}  // namespace octet::supervise
