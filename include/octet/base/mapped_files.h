// Files that become shorter while they are mapped. Reading a lost page would end the process with SIGBUS.
// Here the page reads as zeros instead, and the loss is reported by require_mapped_files().
#pragma once

#include <cstddef>
#include <string>

#include "octet/base/error.h"

namespace octet {

/// Thrown when a mapped file became shorter. Exit code `usage`: the same start fails again.
class ShortenedFile : public Error {
 public:
  using Error::Error;
};

/// A mapping of a file that is watched while this object lives. Destroy it before the mapping is removed.
class WatchedMapping {
 public:
  WatchedMapping() = default;
  /// The handling of a lost page: an error that require_mapped_files() reports, or zeros that the reader
  /// detects by hashes.
  enum class Loss { reported, hashed };
  /// `bytes` at `address` map the file of `descriptor` from its start. `path` names it in messages.
  WatchedMapping(const void* address, std::size_t bytes, int descriptor, const std::string& path,
                 Loss loss = Loss::reported);
  ~WatchedMapping();
  WatchedMapping(WatchedMapping&& other) noexcept;
  WatchedMapping& operator=(WatchedMapping&& other) noexcept;

 private:
  void* slot_ = nullptr;
};

/// When require_mapped_files() compares the sizes of all mapped files.
enum class FileSizes {
  at_times,  ///< at most ten times a second
  always
};

/// Throws ShortenedFile if a page of a mapped file was lost, or if a mapped file is shorter than its mapping.
/// Call it after bytes of mapped files were read and before they are used.
void require_mapped_files(FileSizes sizes = FileSizes::at_times);

}  // namespace octet
