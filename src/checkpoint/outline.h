// What a checkpoint will be before a byte of it is written: its texts, its file and its manifest without the
// hashes. Saving makes a checkpoint by it, and its size is read off it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "h5_layout.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

/// The texts of a checkpoint are filled up with spaces to a multiple of this many bytes, so that its size
/// does not change with the digits of a loss.
inline constexpr std::int64_t kTextBlock = 16 << 10;

/// Bytes of a text of `bytes` bytes in a checkpoint.
std::int64_t filled_up(std::int64_t bytes);
/// The text as it lies in a checkpoint.
std::string filled_up(std::string text);
/// The text without what fills it up.
std::string_view without_filling(std::string_view text);

/// The manifest of a checkpoint of that layout; hashes are empty.
Manifest planned_manifest(const LayoutRequest& request, const FileLayout& layout);
/// Bytes of the text of a manifest whose hashes are empty, with its hashes.
std::int64_t manifest_bytes(Manifest manifest);

}  // namespace octet::checkpoint
