// Complete reads and writes of files at offsets, with errors that name the file, and points where tests make
// them fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace octet::files {

/// Throws Error for a failed call on `path`, with advice for the common error codes.
[[noreturn]] void file_error(const std::string& what, const std::string& path, int code);

/// An owned file descriptor.
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

/// Opens a file with `flags` and O_CLOEXEC. Throws Error.
Descriptor open_file(const std::string& path, int flags);
/// Write or read all `size` bytes at `offset`, with as many system calls as needed. Throw Error; a read past
/// the end reports a truncated file.
void write_at(int fd, const std::string& path, const void* bytes, std::int64_t size, std::int64_t offset);
void read_at(int fd, const std::string& path, void* bytes, std::int64_t size, std::int64_t offset);
void sync_file(int fd, const std::string& path);

// Named points at which a crash test can kill the process.

/// Kills this process with SIGKILL if OCTETRUN_FAILPOINT is "<name>" or "<name>:<count>" and this is the
/// count-th call.
void failpoint(const char* name);

/// Returns whether `folder` simulates a full disk: OCTETRUN_FAILPOINT is "full_disk", and the folder contains
/// a file "disk-is-full".
bool plays_full_disk(const std::string& folder);

}  // namespace octet::files
