#include "octet/base/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace octet {
namespace {

constexpr char kWide = '\xC2';  ///< first byte of U+0080 to U+00BF in UTF-8

/// A terminal with a file descriptor.
struct Screen {
  int fd;
  PrintablePieces pieces;
};

ssize_t write_screen(void* cookie, const char* bytes, std::size_t size) {
  Screen& screen = *static_cast<Screen*>(cookie);
  const std::string text = screen.pieces.take({bytes, size});
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(screen.fd, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return 0;  // stdio reports an error, as for a closed terminal
    at += static_cast<std::size_t>(count);
  }
  return static_cast<ssize_t>(size);
}

}  // namespace

std::string PrintablePieces::take(std::string_view piece) {
  std::string text = held_ ? std::string(1, kWide) : std::string();
  text += piece;
  held_ = !text.empty() && text.back() == kWide;
  if (held_) text.pop_back();
  return printable(text);
}

bool output_is_terminal(int parent) {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (parent == 0) return true;
  const std::string path = "/proc/" + std::to_string(parent) + "/fd/1";
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  // A process of another user, or a pipe without a reader, gives no information.
  if (fd < 0) return errno == EACCES || errno == EPERM;
  const bool terminal = ::isatty(fd) != 0;
  ::close(fd);
  return terminal;
}

std::FILE* printable_stream(int fd) {
  auto* screen = new Screen{.fd = fd, .pieces = {}};  // freed by fclose()
  cookie_io_functions_t calls{};
  calls.write = write_screen;
  calls.close = [](void* cookie) {
    delete static_cast<Screen*>(cookie);
    return 0;
  };
  std::FILE* stream = ::fopencookie(screen, "w", calls);
  if (stream == nullptr) {
    delete screen;
    return nullptr;
  }
  std::setvbuf(stream, nullptr, _IOLBF, BUFSIZ);
  return stream;
}

void protect_terminal() {
  if (std::FILE* stream = printable_stream(STDOUT_FILENO)) stdout = stream;
}

}  // namespace octet
