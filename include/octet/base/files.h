// Files: read whole, mapped, and written so that they appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/mapped_files.h"

namespace octet {

/// Whole contents of a file. Throws Error naming the path and the reason.
std::string read_file(const std::string& path);

/// The same for a regular file of at most `most` bytes. Throws Error for anything else (a pipe, a device, a
/// folder, a larger file) before it reads a byte, and never waits for a writer.
std::string read_regular_file(const std::string& path, std::int64_t most);

/// Returns the exit code for a failed call on a file, from its errno: `storage` if the disk is full, over a
/// quota or a limit, read-only, or fails; `usage` if the path or its rights are wrong; otherwise `failure`.
ExitCode exit_code_of(int error);

/// Writes `bytes` to a temporary file in the folder of `path`, fsyncs, renames over `path`, fsyncs the
/// folder. Throws Error (disk full, folder not writable) and leaves an existing file as it was.
void write_file_atomically(const std::string& path, std::string_view bytes);
/// The same for several ranges of bytes, one after the other.
void write_file_atomically(const std::string& path, std::span<const std::string_view> parts);

/// Makes a folder and its parents. Throws Error when that fails or something else is in the way.
void make_folders(const std::string& path);

/// fsyncs a folder, so that a rename in it survives a power loss.
void sync_folder(const std::string& path);

/// True when a folder exists there.
bool is_folder(const std::string& path);

/// True when a file or folder exists.
bool path_exists(const std::string& path);

/// A file mapped read-only. Movable, not copyable. Empty files have size 0 and no data. If the file becomes
/// shorter, its lost pages read as zeros and require_mapped_files() throws.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  WatchedMapping watched_;
};

/// 64-bit XXH3 hash of some bytes, and 128-bit as 32 hexadecimal digits.
std::uint64_t hash64(std::string_view bytes, std::uint64_t seed = 0);
std::string hash128_hex(std::string_view bytes);
/// The hash of several ranges of bytes, as if they were contiguous.
std::string hash128_hex(std::span<const std::string_view> parts);

}  // namespace octet
