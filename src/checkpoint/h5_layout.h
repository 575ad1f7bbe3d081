// Lays an HDF5 file out: which dataset lies where, without ever touching the disk through libhdf5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/checkpoint/tensor_header.h"
#include "sparse_image.h"

namespace octet::checkpoint {

struct LayoutRequest {
  std::vector<TensorHeader> tensors;
  /// Fixed-length UTF-8 string datasets "/state" and "/config" of these sizes (at least 1).
  std::int64_t state_bytes = 1;
  std::int64_t config_bytes = 1;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
};

struct FileLayout {
  std::int64_t file_bytes = 0;
  std::vector<std::int64_t> offsets;  ///< of the tensors' first bytes; 0 for tensors without elements
  std::int64_t state_offset = 0;
  std::int64_t config_offset = 0;
  SparseImage image;  ///< the metadata, where they belong
};

/// Where a tensor stands in the HDF5 file: "/parameters/<name>", "/optimizer/exp_avg/<name>", …
std::string dataset_path(const std::string& tensor_name);

/// Contiguous, early allocated datasets; those of 128 KiB and more start at multiples of 4 KiB. libhdf5
/// writes only to memory, so it cannot meet a full disk. Throws Error for two tensors of one path and for
/// names HDF5 cannot hold.
FileLayout lay_out(const LayoutRequest& request);

/// Copies the metadata of a layout's image into the file `fd` (already as large as the layout).
void copy_image(const FileLayout& layout, int fd, const std::string& path);

}  // namespace octet::checkpoint
