#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/keeper.h"
#include "octet/checkpoint/manifest.h"
#include "octet/files/file_io.h"

namespace octet::checkpoint {
namespace {

constexpr std::int64_t kDirectAlignment =
    /// Alignment of offsets, sizes and memory that O_DIRECT accepts on every device.
    4096;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Drops the clean pages of a file from the page cache.
void drop_pages(const std::string& path) {
  const files::Descriptor file = files::open_file(path, O_RDONLY | O_NONBLOCK);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

/// A file that is read without the page cache.
class DeviceFile {
 public:
  explicit DeviceFile(const std::string& path)
      : path_(path), buffer_(std::aligned_alloc(kDirectAlignment, kChunkBytes + 2 * kDirectAlignment)) {
    if (!buffer_) throw std::bad_alloc();
    int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    direct_ = fd >= 0;
    file_ = direct_ ? files::Descriptor(fd) : files::open_file(path, O_RDONLY);
  }
  /// Returns `bytes` bytes (at most a chunk) at `offset`; valid until the next call.
  const char* read(std::int64_t offset, std::int64_t bytes) {
    auto* buffer = static_cast<char*>(buffer_.get());
    if (direct_ && read_aligned(offset, bytes)) return buffer + offset % kDirectAlignment;
    files::read_at(file_.get(), path_, buffer, bytes, offset);
    return buffer;
  }

 private:
  // Returns false if the file system rejects direct reads; the file is then reopened without O_DIRECT.
  bool read_aligned(std::int64_t offset, std::int64_t bytes) {
    const std::int64_t first = offset / kDirectAlignment * kDirectAlignment;
    const std::int64_t wanted = offset + bytes - first;
    const std::int64_t size = (wanted + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::int64_t done = 0;
    while (done < wanted) {
      const ssize_t n = ::pread(file_.get(), static_cast<char*>(buffer_.get()) + done,
                                static_cast<std::size_t>(size - done), first + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EINVAL) files::file_error("cannot read a file back", path_, errno);
      // After a short read, the next offset may be unaligned.
      if (n <= 0) {
        direct_ = false;
        file_ = files::open_file(path_, O_RDONLY);
        return false;
      }
      done += n;
    }
    return true;
  }

  std::string path_;
  std::unique_ptr<void, Free> buffer_;
  files::Descriptor file_;
  bool direct_ = false;
};

[[noreturn]] void not_as_written(const std::string& path, const std::string& what) {
  throw Error({.what = "the disk returns other bytes than the program wrote",
               .found = what,
               .where = path,
               .fix = "check the disk and its cables (dmesg, smartctl), and write to another disk",
               .code = ExitCode::storage});
}

}  // namespace

void read_back(const std::string& path) {
  const std::string data = path + "/" + kDataName;
  drop_pages(path + "/" + kManifestName);
  drop_pages(data);
  try {
    const Checkpoint checkpoint(path);
    DeviceFile file(data);
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      for (std::int64_t chunk = 0; chunk < chunk_count(tensor.bytes); ++chunk) {
        const std::int64_t begin = tensor.offset + chunk * kChunkBytes;
        const std::int64_t bytes = std::min(kChunkBytes, tensor.bytes - chunk * kChunkBytes);
        const char* read = file.read(begin, bytes);
        if (hash64({read, static_cast<std::size_t>(bytes)}) != tensor.chunks[static_cast<std::size_t>(chunk)])
          not_as_written(data, "tensor '" + tensor.name + "', bytes " + std::to_string(begin) + " to " +
                                   std::to_string(begin + bytes) + " of the file");
      }
    }
  } catch (const Error& e) {
    if (e.code() != ExitCode::no_valid_checkpoint) throw;
    not_as_written(path, e.problem().what);
  }
}

}  // namespace octet::checkpoint
