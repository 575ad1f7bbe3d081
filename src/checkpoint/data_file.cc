#include "data_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace octet::checkpoint {
namespace {

constexpr std::int64_t kPage = 4096;  ///< alignment that O_DIRECT accepts on every device
constexpr std::int64_t kLeastDirect =
    /// Smaller pieces are faster through the page cache than as a separate direct write.
    128 << 10;
constexpr std::int64_t kLargestDirect = 16 << 20;
constexpr std::int64_t kCopied = 4 << 20;  ///< bytes copied at a time if pages are unaligned

}  // namespace

void DataFile::Free::operator()(void* memory) const {
  std::free(memory);
}

DataFile::DataFile(const std::string& path, bool direct)
    : path_(path), file_(files::open_file(path, O_RDWR)) {
  if (direct) direct_ = files::Descriptor(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
}

void DataFile::write(const void* bytes, std::int64_t size, std::int64_t offset) {
  const auto* from = static_cast<const std::byte*>(bytes);
  const std::int64_t first = (offset + kPage - 1) / kPage * kPage, last = (offset + size) / kPage * kPage;
  if (direct_.get() < 0 || last - first < kLeastDirect ||
      !write_pages(from + (first - offset), last - first, first)) {
    return files::write_at(file_.get(), path_, from, size, offset);
  }
  files::write_at(file_.get(), path_, from, first - offset, offset);
  files::write_at(file_.get(), path_, from + (last - offset), offset + size - last, last);
}

// Returns false if the file system rejects direct writes; later calls then do not try them.
bool DataFile::write_pages(const std::byte* bytes, std::int64_t size, std::int64_t offset) {
  const bool in_place = reinterpret_cast<std::uintptr_t>(bytes) % kPage == 0;
  if (!in_place && !pages_) {
    pages_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kCopied)));
    if (!pages_) throw std::bad_alloc();
  }
  while (size > 0) {
    const std::int64_t most = std::min(size, in_place ? kLargestDirect : kCopied);
    const std::byte* from = bytes;
    if (!in_place)
      from = static_cast<std::byte*>(std::memcpy(pages_.get(), bytes, static_cast<std::size_t>(most)));
    const ssize_t n = ::pwrite(direct_.get(), from, static_cast<std::size_t>(most), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP)
      files::file_error("cannot write a file", path_, errno);
    // After a short write, the next offset may be unaligned.
    if (n <= 0 || n % kPage != 0) {
      direct_ = {};
      return false;
    }
    bytes += n, size -= n, offset += n;
  }
  return true;
}

}  // namespace octet::checkpoint
