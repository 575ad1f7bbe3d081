// A checkpoint's data file as the ranks write it: pieces at offsets, through the page cache or past it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "file_io.h"

namespace octet::checkpoint {

class DataFile {
 public:
  /// Opens an existing file. `direct`: whole pages go to the device past the page cache, without a copy where
  /// the bytes lie as far behind a multiple of 4096 in memory as in the file; where the file system has no
  /// such writes, and for the rest of a piece, as without. A page that several pieces share is always written
  /// through the page cache, so that two ranks may.
  DataFile(const std::string& path, bool direct);

  /// All `size` bytes at `offset`. Throws Error.
  void write(const void* bytes, std::int64_t size, std::int64_t offset);
  /// Returns when what was written is on the device.
  void sync() { sync_file(file_.get(), path_); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  bool write_pages(const std::byte* bytes, std::int64_t size, std::int64_t offset);

  std::string path_;
  Descriptor file_, direct_;
  std::unique_ptr<std::byte, Free> pages_;  ///< for bytes that lie otherwise in memory; made when needed
};

}  // namespace octet::checkpoint
