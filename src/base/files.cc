#include "octet/base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "octet/base/error.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const std::string& path, int code,
                       const std::string& fix = "check its permissions and the disk (df, dmesg)") {
  if (code == ENOMEM) throw Error(without_memory(what, "", path));
  throw Error(
      {.what = what, .found = std::strerror(code), .where = path, .fix = fix, .code = exit_code_of(code)});
}

// A file descriptor that closes itself.
struct Descriptor {
  int fd;
  explicit Descriptor(int f) : fd(f) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : "a device or a socket";
}

// Opens a file with a size that is known before reading. Without O_NONBLOCK, opening a pipe would wait for a
// writer.
int open_regular(const std::string& path, struct stat& st) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("cannot open a file", path, errno, "check the path and its permissions");
  if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
  ::close(fd);
  throw Error({.what = "this is not a regular file",
               .expected = "a regular file",
               .found = kind_of(st.st_mode),
               .where = path,
               .fix = "name a regular file; write the output of a command into a file first",
               .code = ExitCode::usage});
}

std::string read_all(int fd, const std::string& path, std::int64_t expected) {
  std::string text;
  text.reserve(static_cast<std::size_t>(expected));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read a file", path, errno);
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

// Reads a pipe or a device (`<(command)`, /dev/stdin) to its end, up to a limit of bytes and of idle time.
std::string read_stream(int fd, const std::string& path) {
  constexpr std::size_t kMost = std::size_t{64} << 20;
  constexpr int kPatience = 5000;  // milliseconds
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    struct pollfd ready {
      fd, POLLIN, 0
    };
    const int events = ::poll(&ready, 1, kPatience);
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) fail("a pipe or a device gives no data", path, ETIMEDOUT, "name a file");
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) fail("cannot read a file", path, errno);
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > kMost) fail("a pipe or a device gives too much data", path, EFBIG, "name a file");
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) fail("cannot open a file", path, errno, "check the path and its permissions");
  struct stat st {};
  if (::fstat(file.fd, &st) != 0) fail("cannot read a file", path, errno);
  if (S_ISDIR(st.st_mode)) fail("cannot read a file", path, EISDIR, "name a file, not a folder");
  if (!S_ISREG(st.st_mode)) return read_stream(file.fd, path);
  return read_all(file.fd, path, st.st_size);
}

std::string read_regular_file(const std::string& path, std::int64_t most) {
  struct stat st {};
  const Descriptor file(open_regular(path, st));
  if (st.st_size > most) {
    throw Error({.what = "a file is too large",
                 .expected = "at most " + std::to_string(most) + " bytes",
                 .found = std::to_string(st.st_size) + " bytes",
                 .where = path,
                 .fix = "check that this is the right file",
                 .code = ExitCode::usage});
  }
  return read_all(file.fd, path, st.st_size);
}

ExitCode exit_code_of(int error) {
  static constexpr std::array kStorage{ENOSPC, EDQUOT, EFBIG, EROFS, EIO};
  static constexpr std::array kPath{ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG, ENXIO};
  if (error == ENOMEM) return code_without_memory();
  if (std::ranges::find(kStorage, error) != kStorage.end()) return ExitCode::storage;
  return std::ranges::find(kPath, error) != kPath.end() ? ExitCode::usage : ExitCode::failure;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  write_file_atomically(path, std::span(&bytes, 1));
}

void write_file_atomically(const std::string& path, std::span<const std::string_view> parts) {
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.fd < 0)
      fail("cannot create a file", path, errno, "check that the folder exists and can be written");
    const auto give_up = [&](int code) {
      ::unlink(temporary.c_str());
      fail("cannot write a file", path, code,
           code == ENOSPC ? "free some disk space" : "check the disk (df, dmesg)");
    };
    for (std::string_view bytes : parts) {
      while (!bytes.empty()) {
        const ssize_t n = ::write(file.fd, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) give_up(errno);
        bytes.remove_prefix(static_cast<std::size_t>(n));
      }
    }
    if (::fsync(file.fd) != 0) give_up(errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary.c_str());
    fail("cannot rename a finished file into place", path, code);
  }
  const auto parent = fs::path(path).parent_path();
  sync_folder(parent.empty() ? "." : parent.string());
}

void make_folders(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code || !fs::is_directory(path)) {
    throw Error({.what = "cannot make a folder",
                 .found = code ? code.message() : "a file is in the way",
                 .where = path,
                 .fix = "choose a folder that can be written",
                 .code = code ? exit_code_of(code.value()) : ExitCode::usage});
  }
}

void sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems refuse fsync on folders with EINVAL; there the rename is as safe as they make it.
  if (folder.fd < 0 || (::fsync(folder.fd) != 0 && errno != EINVAL))
    fail("cannot sync a folder", path, errno);
}

bool is_folder(const std::string& path) {
  std::error_code none;
  return fs::is_directory(path, none);
}

bool path_exists(const std::string& path) {
  std::error_code code;
  return fs::exists(path, code);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  struct stat st {};
  const Descriptor file(open_regular(path, st));
  size_ = static_cast<std::size_t>(st.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail("cannot map a file", path, errno);
  data_ = static_cast<const std::byte*>(address);
  watched_ = WatchedMapping(data_, size_, file.fd, path_);
}

MappedFile::~MappedFile() {
  watched_ = {};
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watched_(std::move(other.watched_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(watched_, other.watched_);
  return *this;
}

std::uint64_t hash64(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::string hash128_hex(std::string_view bytes) {
  return hash128_hex(std::span(&bytes, 1));
}

std::string hash128_hex(std::span<const std::string_view> parts) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  check(state && XXH3_128bits_reset(state.get()) == XXH_OK, "the state of the hash is not null");
  for (const std::string_view part : parts) XXH3_128bits_update(state.get(), part.data(), part.size());
  const XXH128_hash_t h = XXH3_128bits_digest(state.get());
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint64_t half : {h.high64, h.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[(half >> shift) & 15u];
  }
  return text;
}

}  // namespace octet
