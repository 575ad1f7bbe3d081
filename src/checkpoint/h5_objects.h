// Wrappers of libhdf5 for writing and reading files: owned identifiers, errors with the library's reason,
// types and attributes.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace octet::checkpoint {

// A sparse file in memory, into which libhdf5 lays out files.

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

/// Mutex for every use of libhdf5. Some builds of it are not thread-safe, and ranks may be threads of one
/// process.
std::mutex& hdf5_mutex();

/// Returns a valid `id`; otherwise throws Error with libhdf5's reason. `what`: the affected object, for the
/// message.
hid_t good(hid_t id, const std::string& what);
/// Returns libhdf5's reason for the last failure.
std::string hdf5_reason();

/// An owned identifier.
class Handle {
 public:
  Handle(hid_t id, herr_t (*closer)(hid_t), const std::string& what) : id_(good(id, what)), close_(closer) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }
  void close(const std::string& what) { good(close_(std::exchange(id_, -1)), what); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// Returns an IEEE-like little-endian float type that HDF5 does not predefine. The caller closes it.
hid_t small_float(std::size_t bytes, std::size_t exponent_bits, std::size_t mantissa_bits);
/// Returns a type for UTF-8 strings of `bytes` bytes, padded with zeros. The caller closes it.
hid_t string_type(std::size_t bytes);

/// Adds a scalar attribute to an object.
void add_text(hid_t object, const char* name, const std::string& value);
void add_number(hid_t object, const char* name, std::int64_t value);

/// An HDF5 file with `datasets` contiguous, early allocated datasets, laid out in memory. Datasets of 128 KiB
/// and more begin at multiples of 4 KiB. No object stores its creation time. libhdf5 writes only to `image`,
/// which must outlive the file, so a full disk cannot affect it. The caller must hold hdf5_mutex().
class FileInMemory {
 public:
  FileInMemory(SparseImage& image, std::size_t datasets);
  operator hid_t() const { return file_; }
  /// Creates a group. Its parent must exist.
  void add_group(const std::string& path);
  /// Creates a dataset and returns the offset of its first byte, which is not yet written; 0 if it has no
  /// elements. An empty `shape` means a scalar. `dtype_attribute`: value of an attribute "dtype", or null.
  std::int64_t add_dataset(const std::string& path, hid_t type, const std::vector<std::int64_t>& shape,
                           const char* dtype_attribute = nullptr);
  /// Closes the file; the image is then complete.
  void close() { file_.close("file in memory"); }

 private:
  Handle links_;    ///< names are UTF-8
  Handle groups_;   ///< without modification times
  Handle storage_;  ///< contiguous, allocated early, not filled
  Handle file_;
};

}  // namespace octet::checkpoint
