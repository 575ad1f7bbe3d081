// What one rank holds of a checkpoint in memory: a file of a host's memory file system.
//
// A page of fixed fields, a header, then the values of the rank's slices, one slice behind the other, each at
// a multiple of 64 bytes. The header has the hashes that files have (XXH3-64 of each MiB of a slice's
// values), the page a hash of the header. The page is cleared before anything else is written and filled
// last: a part is there whole or not at all.
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
#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

/// Which part of which checkpoint it is.
struct PartFacts {
  std::string identity;  ///< a hash of run, model and configuration
  std::string taken;     ///< names the moment: the same in all parts of one checkpoint, and in no other
  std::int64_t step = 0;
  int zero_stage = 0;
  int world = 1;
  int rank = 0;
  std::string host;
  std::string state, config;  ///< of rank 0's part; empty in others
};

/// A slice in a part: as in TensorSlice, but packed.
struct PartSlice {
  TensorHeader tensor;
  std::int64_t begin = 0, count = 0, rows = 1, stride = 0;
  std::int64_t offset = 0;  ///< of its values in the file
  std::int64_t bytes = 0;
  std::size_t first_chunk = 0;  ///< of its hashes among those of the header
  std::int64_t elements() const { return rows * count; }
};

struct PartHeader {
  PartFacts facts;
  std::string description;  ///< of the slices, as describe() gives it
  std::vector<PartSlice> slices;
  std::vector<std::uint64_t> chunks;
  std::int64_t file_bytes = 0;
};

/// The header of a part with these slices, its hashes still zero.
PartHeader lay_part_out(PartFacts facts, const std::vector<TensorSlice>& slices);
std::string packed(const PartHeader& header);
/// Throws Error (no_valid_checkpoint) for a text that is none of packed(); `where` is for the message.
PartHeader unpacked(std::string_view text, const std::string& where);

/// A file in memory, mapped.
class PartMemory {
 public:
  /// Makes a file of so many bytes, whose memory is taken at once, or takes over the one that is there. It
  /// holds no part afterwards. Throws Error (storage) where the memory file system, or its limit, has not so
  /// much.
  static PartMemory make(const std::string& path, std::int64_t bytes);
  /// An existing file, to be read. Throws Error for what is no regular file of this user.
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

/// Copies the values of the slices, for which the header was made, and hashes them on the way.
void copy_values(PartMemory& memory, PartHeader& header, const std::vector<TensorSlice>& slices);
/// Compares the memory with the hashes and makes it a part. Throws Error where they differ.
void seal_part(PartMemory& memory, const PartHeader& header);
/// The same of a part that came from elsewhere as bytes: `page` is its first page, all others are in place.
void seal_copy(PartMemory& memory, std::span<const std::byte> page);

/// The header of what lies in memory; nothing for a part that is not complete. Throws Error
/// (no_valid_checkpoint) where its own hash does not hold.
std::optional<PartHeader> read_header(const PartMemory& memory);
/// Throws Error (no_valid_checkpoint) naming the first bytes whose hash does not hold.
void verify_values(const PartMemory& memory, const PartHeader& header);

/// Bytes of a part's first page, and of a part as far as its values go.
inline constexpr std::int64_t kPartPage = 4096;

}  // namespace octet::checkpoint
