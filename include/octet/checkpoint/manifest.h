// Format of manifest.json: one line with the hash of all later bytes, then the JSON members.
#pragma once

#include <string>
#include <string_view>

#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

inline constexpr int kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kDataName = "checkpoint.h5";

/// Hexadecimal digits of a chunk hash.
inline constexpr std::int64_t kChunkDigits = 16;

/// Returns the number of chunks of a tensor of `bytes` bytes.
constexpr std::int64_t chunk_count(std::int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Returns the content hash of a tensor, from its chunk hashes. It is independent of world size, stage and
/// file offset.
std::string content_hash(const weights::TensorHeader& tensor, const std::vector<std::uint64_t>& chunks);

/// Returns the text of the file.
std::string manifest_text(const Manifest& manifest);
/// Parses and checks this text. Throws Error naming `path`.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// Reads the manifest of the checkpoint in `folder`. It must be a regular file, and not larger than possible
/// for the size of the data file. Throws Error (ExitCode::no_valid_checkpoint) otherwise.
Manifest read_manifest(const std::string& folder);

/// Returns the XXH3-128 of the bytes of the data file outside all tensors, state and config.
std::string hash_layout(int fd, const std::string& path, const Manifest& manifest);

}  // namespace octet::checkpoint
