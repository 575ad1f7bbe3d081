#include "standard_streams.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/terminal.h"

namespace octet::launch {

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd writable{.fd = file, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
      continue;
    }
    if (n < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void write_error(std::string_view text) {
  write_all(STDERR_FILENO, text);
}

int tell_exception(const std::exception& e) {
  const std::optional<Problem> problem = problem_of(e);
  write_error("error: " + printable(problem ? Error(*problem).what() : e.what()) + "\n");
  return static_cast<int>(problem ? problem->code : ExitCode::failure);
}

}  // namespace octet::launch
