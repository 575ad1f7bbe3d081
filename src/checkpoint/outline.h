// Plan of a checkpoint before it is written: its texts, the layout of its HDF5 file, and its manifest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h5_objects.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/weights/tensor_header.h"

namespace octet::checkpoint {

// Layout of an HDF5 file: computes the offsets of datasets, without disk access by libhdf5.

struct LayoutRequest {
  std::vector<weights::TensorHeader> tensors;
  /// Fixed-length UTF-8 string datasets "/state" and "/config" of these sizes (at least 1).
  std::int64_t state_bytes = 1;
  std::int64_t config_bytes = 1;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
};

struct FileLayout {
  std::int64_t file_bytes = 0;
  std::vector<std::int64_t> offsets;  ///< offsets of the tensors' first bytes; 0 for tensors without elements
  std::int64_t state_offset = 0;
  std::int64_t config_offset = 0;
  SparseImage image;  ///< the metadata at their offsets
};

/// Returns the path of a tensor in the HDF5 file: "/parameters/<name>", "/optimizer/exp_avg/<name>", …
std::string dataset_path(const std::string& tensor_name);

/// Lays out contiguous, early allocated datasets. Datasets of 128 KiB and more begin at multiples of 4 KiB.
/// libhdf5 writes only to memory, so a full disk cannot affect it. Throws Error for two tensors with one
/// path, and for names that HDF5 does not support.
FileLayout lay_out(const LayoutRequest& request);

/// Copies the metadata of a layout into the file `fd`, which already has its full size.
void copy_image(const FileLayout& layout, int fd, const std::string& path);

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
