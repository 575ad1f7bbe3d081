#include "octet/base/long_array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "octet/base/environment.h"

namespace octet {
namespace {

// The bytes by which a file grows at once.
constexpr std::size_t kStep = std::size_t{64} << 20;

[[noreturn]] void fail(int code) {
  const char* folder = environment_variable("TMPDIR");
  throw Error(
      {.what = "a list that does not fit into memory cannot be written to disk",
       .found = std::strerror(code),
       .where = folder ? folder : "/tmp",
       .fix =
           "set TMPDIR to a folder with room on a disk (in /dev/shm it stays in memory), or stream the data "
           "(streaming: true)",
       .code = exit_code_of(code)});
}

}  // namespace

UnnamedFile::~UnnamedFile() {
  if (data_) ::munmap(data_, capacity_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void UnnamedFile::grow(std::size_t capacity) {
  if (capacity <= capacity_) return;
  if (descriptor_ < 0) {
    std::error_code none;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(none);
    if (none) fail(none.value());
    std::string path = (folder / "octet-list-XXXXXX").string();
    descriptor_ = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) fail(errno);
    ::unlink(path.c_str());
  }
  const std::size_t wanted = (capacity + kStep - 1) / kStep * kStep;
  int code = EINTR;
  while (code == EINTR) {
    code =
        ::posix_fallocate(descriptor_, static_cast<off_t>(capacity_), static_cast<off_t>(wanted - capacity_));
  }
  if (code != 0) fail(code);
  void* address = data_ ? ::mremap(data_, capacity_, wanted, MREMAP_MAYMOVE)
                        : ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) fail(errno);
  data_ = static_cast<std::byte*>(address);
  capacity_ = wanted;
}

void UnnamedFile::put_away(std::size_t bytes) {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t end = std::min(bytes, capacity_) / page * page;
  // The pages belong to the file, so their contents stay. This is only advice: a refusal has no effect.
  if (end > away_) ::madvise(data_ + away_, end - away_, MADV_DONTNEED);
  away_ = std::max(away_, end);
}

std::string UnnamedFile::address() const {
  struct stat found {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0) return "";
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_) + " " +
         std::to_string(found.st_dev) + " " + std::to_string(found.st_ino);
}

namespace {

std::string path_of(const std::string& address) {
  return address.substr(0, address.find(' '));
}

}  // namespace

bool is_shared_file(const std::string& address) {
  struct stat found {};
  const std::string path = path_of(address);
  if (path.empty() || ::stat(path.c_str(), &found) != 0) return false;
  return address == path + " " + std::to_string(found.st_dev) + " " + std::to_string(found.st_ino) &&
         ::access(path.c_str(), R_OK) == 0;
}

std::shared_ptr<const MappedFile> map_shared_file(const std::string& address, std::size_t bytes) {
  auto file = std::make_shared<const MappedFile>(path_of(address));
  if (file->bytes().size() >= bytes) return file;
  throw Error({.what = "a list of another process is shorter than it should be",
               .expected = std::to_string(bytes) + " bytes",
               .found = std::to_string(file->bytes().size()) + " bytes",
               .where = address,
               .fix = "start the run again; if it happens again, report it as a bug"});
}

}  // namespace octet
