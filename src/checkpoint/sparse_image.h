// A sparse file in memory, into which libhdf5 lays out files.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

namespace octet::checkpoint {

/// The pages of a file. Unwritten pages read as zeros.
class SparseImage {
 public:
  static constexpr std::int64_t kPage = 4096;
  using Page = std::array<char, kPage>;

  void write(std::int64_t offset, const char* bytes, std::int64_t size);
  void read(std::int64_t offset, char* bytes, std::int64_t size) const;
  /// Returns offset and bytes of the written pages, in order.
  const std::map<std::int64_t, std::unique_ptr<Page>>& pages() const { return pages_; }
  std::int64_t size = 0;

 private:
  std::map<std::int64_t, std::unique_ptr<Page>> pages_;
};

/// Returns a file access list. The next H5Fcreate or H5Fopen with it on this thread accesses `image`, which
/// must outlive the file. The caller closes the list.
hid_t access_to(SparseImage& image);

}  // namespace octet::checkpoint
