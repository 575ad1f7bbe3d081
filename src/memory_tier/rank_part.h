// Part of a checkpoint in memory, for one rank: a file in a host's memory file system.
//
// The file is a page of fixed fields, a header, and the values of the rank's slices. Each slice begins at a
// multiple of 64 bytes. The header has the same hashes as checkpoint files (XXH3-64 of each MiB of a slice),
// and the page has a hash of the header. The page is cleared before any other write and filled last, so a
// part is either complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/mapped_files.h"
#include "octet/base/tensor_slice.h"
#include "octet/weights/tensor_header.h"

namespace octet::memory_tier {

/// Identity of a part and of its checkpoint.
struct PartFacts {
  std::string identity;  ///< hash of run, model and configuration
  std::string taken;     ///< unique name of the checkpoint; equal in all its parts
  std::int64_t step = 0;
  int zero_stage = 0;
  int world = 1;
  int rank = 0;
  std::string host;
  std::string state, config;  ///< set in rank 0's part only
};

/// A slice in a part: like TensorSlice, but densely packed.
struct PartSlice {
  weights::TensorHeader tensor;
  std::int64_t begin = 0, count = 0, rows = 1, stride = 0;
  std::int64_t offset = 0;  ///< offset of its values in the file
  std::int64_t bytes = 0;
  std::size_t first_chunk = 0;  ///< index of its first hash in the header
  std::int64_t elements() const { return rows * count; }
};

struct PartHeader {
  PartFacts facts;
  std::string description;  ///< result of describe() for the slices
  std::vector<PartSlice> slices;
  std::vector<std::uint64_t> chunks;
  std::int64_t file_bytes = 0;
};

/// Returns the header of a part with these slices. Its hashes are zero.
PartHeader lay_part_out(PartFacts facts, const std::vector<TensorSlice>& slices);
std::string packed(const PartHeader& header);
/// Parses the result of packed(). Throws Error (no_valid_checkpoint) for other text; `where` is for the
/// message.
PartHeader unpacked(std::string_view text, const std::string& where);

/// A mapped file in a memory file system.
class PartMemory {
 public:
  /// Creates a file of `bytes` bytes and allocates its memory at once, or reuses an existing file. It then
  /// contains no valid part. Throws Error (storage) if the memory file system or its limit has too little
  /// space.
  static PartMemory make(const std::string& path, std::int64_t bytes);
  /// Opens an existing file for reading. Throws Error if it is not a regular file of this user.
  static PartMemory open(const std::string& path);
  ~PartMemory();
  PartMemory(PartMemory&& other) noexcept;
  PartMemory& operator=(PartMemory&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  PartMemory(std::string path, int fd, std::size_t size, bool writes);
  std::string path_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  WatchedMapping watched_;
};

/// Copies the values of the slices and hashes them. `header` must be made for these slices.
void copy_values(PartMemory& memory, PartHeader& header, const std::vector<TensorSlice>& slices);
/// Verifies the values against the hashes, and completes the part. Throws Error if they differ.
void seal_part(PartMemory& memory, const PartHeader& header);
/// Like seal_part(), but for a part received as bytes. `page` is its first page; all other bytes are in
/// place.
void seal_copy(PartMemory& memory, std::span<const std::byte> page);

/// Returns the header, or nothing for an incomplete part. Throws Error (no_valid_checkpoint) if its hash is
/// wrong.
std::optional<PartHeader> read_header(const PartMemory& memory);
/// Throws Error (no_valid_checkpoint) naming the first bytes with a wrong hash.
void verify_values(const PartMemory& memory, const PartHeader& header);

/// Bytes of a part's first page.
inline constexpr std::int64_t kPartPage = 4096;

}  // namespace octet::memory_tier
