// What is made of libhdf5's calls wherever a file is laid out or read: identifiers that close themselves,
// errors with the library's own reason, types and attributes.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sparse_image.h"

namespace octet::checkpoint {

/// Held around every use of libhdf5: some builds of it are not thread-safe, and ranks may be threads of one
/// process.
std::mutex& hdf5_mutex();

/// `id` where it is one; else throws Error with libhdf5's reason. `what`: the object it was about.
hid_t good(hid_t id, const std::string& what);
/// The reason that libhdf5 gave for what failed last.
std::string hdf5_reason();

/// An identifier that closes itself.
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

/// An IEEE-like float, little-endian, that HDF5 has no name for. The caller closes it.
hid_t small_float(std::size_t bytes, std::size_t exponent_bits, std::size_t mantissa_bits);
/// A string of so many bytes of UTF-8, filled up with zeros. The caller closes it.
hid_t string_type(std::size_t bytes);

/// Adds a scalar attribute to an object.
void add_text(hid_t object, const char* name, const std::string& value);
void add_number(hid_t object, const char* name, std::int64_t value);

/// A file of `datasets` contiguous, early allocated datasets, laid out in memory: those of 128 KiB and more
/// start at multiples of 4 KiB, and no object keeps the time at which it was made. libhdf5 writes only to
/// `image`, which must outlive it, so it cannot meet a full disk. To be used under hdf5_mutex().
class FileInMemory {
 public:
  FileInMemory(SparseImage& image, std::size_t datasets);
  operator hid_t() const { return file_; }
  /// Makes a group, whose parent must be there.
  void add_group(const std::string& path);
  /// Makes a dataset and returns the offset of its first byte, which is nobody's yet; 0 where it has no
  /// elements. `shape` empty: a scalar. `dtype_attribute`: text of an attribute of that name, or null.
  std::int64_t add_dataset(const std::string& path, hid_t type, const std::vector<std::int64_t>& shape,
                           const char* dtype_attribute = nullptr);
  /// The image is whole from here on.
  void close() { file_.close("file in memory"); }

 private:
  Handle links_;    ///< names are UTF-8
  Handle groups_;   ///< without modification times
  Handle storage_;  ///< contiguous, allocated early, not filled
  Handle file_;
};

}  // namespace octet::checkpoint
