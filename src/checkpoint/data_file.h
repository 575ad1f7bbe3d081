// Writer of a checkpoint's data file: pieces at offsets, through the page cache or directly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "octet/files/file_io.h"

namespace octet::checkpoint {

class DataFile {
 public:
  /// Opens an existing file. With `direct`, whole pages bypass the page cache. They need no copy if memory
  /// address and file offset are equal modulo 4096. Other bytes, and file systems without direct writes, use
  /// the page cache. A page that several pieces share is always written through the page cache, so that two
  /// ranks can write it.
  DataFile(const std::string& path, bool direct);

  /// Writes all `size` bytes at `offset`. Throws Error.
  void write(const void* bytes, std::int64_t size, std::int64_t offset);
  /// Blocks until all writes are on the device.
  void sync() { files::sync_file(file_.get(), path_); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  bool write_pages(const std::byte* bytes, std::int64_t size, std::int64_t offset);

  std::string path_;
  files::Descriptor file_, direct_;
  std::unique_ptr<std::byte, Free> pages_;  ///< buffer for unaligned bytes; allocated when needed
};

}  // namespace octet::checkpoint
