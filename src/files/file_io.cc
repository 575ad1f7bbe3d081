#include "octet/files/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::files {
namespace {

constexpr std::int64_t kLargestCall = 1 << 30;  ///< Linux transfers at most 2 GiB - 4 KiB per call

}  // namespace

void file_error(const std::string& what, const std::string& path, int code) {
  if (code == ENOMEM) throw Error(without_memory(what, "", path));
  std::string fix;
  if (code == ENOSPC || code == EDQUOT || code == EFBIG)
    fix = "free some disk space, raise the limit or write elsewhere";
  if (code == EACCES || code == EROFS || code == EPERM) fix = "choose a folder that this user can write";
  if (code == ENOENT) fix = "check the path; on several nodes the folder must be shared by all of them";
  if (code == EIO) fix = "check the disk (dmesg)";
  throw Error(
      {.what = what, .found = std::strerror(code), .where = path, .fix = fix, .code = exit_code_of(code)});
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor open_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) file_error((flags & O_CREAT) ? "cannot create a file" : "cannot open a file", path, errno);
  return Descriptor(fd);
}

void write_at(int fd, const std::string& path, const void* bytes, std::int64_t size, std::int64_t offset) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, from, static_cast<std::size_t>(std::min(size, kLargestCall)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) file_error("cannot write a file", path, errno);
    from += n;
    size -= n;
    offset += n;
  }
}

void read_at(int fd, const std::string& path, void* bytes, std::int64_t size, std::int64_t offset) {
  char* to = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::pread(fd, to, static_cast<std::size_t>(std::min(size, kLargestCall)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) file_error("cannot read a file", path, errno);
    if (n == 0) {
      throw Error({.what = "a file is truncated",
                   .expected = "at least " + std::to_string(offset + size) + " bytes",
                   .found = std::to_string(offset) + " bytes",
                   .where = path,
                   .fix = "fetch or write the file again; if this is a checkpoint, use another checkpoint",
                   .code = ExitCode::no_valid_checkpoint});
    }
    to += n;
    size -= n;
    offset += n;
  }
}

void sync_file(int fd, const std::string& path) {
  if (::fsync(fd) != 0) file_error("cannot sync a file", path, errno);
}

void failpoint(const char* name) {
  const char* wanted = environment_variable("OCTETRUN_FAILPOINT");
  if (wanted == nullptr) return;
  const std::string_view text(wanted);
  const std::size_t colon = text.find(':');
  if (text.substr(0, colon) != name) return;
  static std::atomic<int> passings{0};
  const int count = colon == std::string_view::npos ? 1 : std::atoi(wanted + colon + 1);
  if (++passings >= count) ::kill(::getpid(), SIGKILL);
}

bool plays_full_disk(const std::string& folder) {
  const char* wanted = environment_variable("OCTETRUN_FAILPOINT");
  return wanted != nullptr && std::string_view(wanted) == "full_disk" &&
         ::access((folder + "/disk-is-full").c_str(), F_OK) == 0;
}

}  // namespace octet::files
