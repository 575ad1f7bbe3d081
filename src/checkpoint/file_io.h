// Plain files at offsets: whole reads and writes, errors with names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace octet::checkpoint {

/// Throws Error for a failed call on `path`, with what to do about the usual codes.
[[noreturn]] void file_error(const std::string& what, const std::string& path, int code);

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// open(2) with `flags` and O_CLOEXEC; throws Error.
Descriptor open_file(const std::string& path, int flags);
/// All `size` bytes at `offset`, however often the call must be repeated. Throws Error; a read past the end
/// says that the file is truncated.
void write_at(int fd, const std::string& path, const void* bytes, std::int64_t size, std::int64_t offset);
void read_at(int fd, const std::string& path, void* bytes, std::int64_t size, std::int64_t offset);
void sync_file(int fd, const std::string& path);

}  // namespace octet::checkpoint
