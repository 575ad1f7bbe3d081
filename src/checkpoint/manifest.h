// manifest.json: one line with the hash of all that follows, then the JSON members.
#pragma once

#include <string>
#include <string_view>

#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

inline constexpr int kFormatVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kDataName = "checkpoint.h5";

/// Digits of a chunk's hash in the text.
inline constexpr std::int64_t kChunkDigits = 16;

/// Chunks of a tensor of that many bytes.
constexpr std::int64_t chunk_count(std::int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Hash of a tensor's contents from its chunks': the same for any world size, stage and place in the file.
std::string content_hash(const TensorHeader& tensor, const std::vector<std::uint64_t>& chunks);

/// Whole text of the file.
std::string manifest_text(const Manifest& manifest);
/// Reads and checks such a text. Throws Error naming `path`.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// Reads the manifest of the checkpoint in `folder`: a regular file, no larger than that of any checkpoint
/// with a data file of this size. Throws Error (ExitCode::no_valid_checkpoint) for anything else.
Manifest read_manifest(const std::string& folder);

/// XXH3-128 of the bytes of the data file that lie in no tensor, state or config.
std::string hash_layout(int fd, const std::string& path, const Manifest& manifest);

}  // namespace octet::checkpoint
