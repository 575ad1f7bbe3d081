// Plan of a checkpoint before it is written: its texts, its file layout, and its manifest without hashes.
// Saving uses the plan, and so does the computation of sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "h5_layout.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

/// Texts of a checkpoint are padded with spaces to a multiple of this many bytes. Its size then does not
/// change with the digits of a loss.
inline constexpr std::int64_t kTextBlock = 16 << 10;

/// Returns the padded size of a text of `bytes` bytes.
std::int64_t filled_up(std::int64_t bytes);
/// Returns the padded text.
std::string filled_up(std::string text);
/// Returns the text without padding.
std::string_view without_filling(std::string_view text);

/// Returns the manifest of a checkpoint with this layout. Hashes are empty.
Manifest planned_manifest(const LayoutRequest& request, const FileLayout& layout);
/// Returns the bytes of the manifest text with all hashes. `manifest` has empty hashes.
std::int64_t manifest_bytes(Manifest manifest);

}  // namespace octet::checkpoint
