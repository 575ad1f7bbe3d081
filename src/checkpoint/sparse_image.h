// A file that exists only in memory and only where something was written: what libhdf5 lays out into.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

namespace octet::checkpoint {

/// Pages of a file; those never written read as zeros.
class SparseImage {
 public:
  static constexpr std::int64_t kPage = 4096;
  using Page = std::array<char, kPage>;

  void write(std::int64_t offset, const char* bytes, std::int64_t size);
  void read(std::int64_t offset, char* bytes, std::int64_t size) const;
  /// Offset and bytes of the pages that were written, in order.
  const std::map<std::int64_t, std::unique_ptr<Page>>& pages() const { return pages_; }
  std::int64_t size = 0;

 private:
  std::map<std::int64_t, std::unique_ptr<Page>> pages_;
};

/// A file access list whose next H5Fcreate on this thread writes to `image`, which must outlive the file. The
/// caller closes the list.
hid_t access_to(SparseImage& image);

}  // namespace octet::checkpoint
