#include "outline.h"

#include <algorithm>

#include "octet/base/files.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/save.h"

namespace octet::checkpoint {

std::int64_t filled_up(std::int64_t bytes) {
  return std::max(kTextBlock, (bytes + kTextBlock - 1) / kTextBlock * kTextBlock);
}

std::string filled_up(std::string text) {
  text.resize(static_cast<std::size_t>(filled_up(static_cast<std::int64_t>(text.size()))), ' ');
  return text;
}

std::string_view without_filling(std::string_view text) {
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

Manifest planned_manifest(const LayoutRequest& request, const FileLayout& layout) {
  Manifest manifest;
  manifest.step = request.step;
  manifest.world = request.world;
  manifest.zero_stage = request.zero_stage;
  manifest.file = kDataName;
  manifest.file_bytes = layout.file_bytes;
  manifest.state = {.offset = layout.state_offset, .bytes = request.state_bytes, .hash = {}};
  manifest.config = {.offset = layout.config_offset, .bytes = request.config_bytes, .hash = {}};
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    CheckpointTensor tensor;
    static_cast<weights::TensorHeader&>(tensor) = request.tensors[i];
    tensor.bytes = weights::byte_count(tensor);
    tensor.offset = layout.offsets[i];
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

std::int64_t manifest_bytes(Manifest manifest) {
  const std::string hash = hash128_hex("");  // all hashes have this length
  manifest.state.hash = manifest.config.hash = manifest.layout_hash = hash;
  std::int64_t chunks = 0;
  for (CheckpointTensor& tensor : manifest.tensors) {
    tensor.hash = hash;
    chunks += chunk_count(tensor.bytes);
  }
  return static_cast<std::int64_t>(manifest_text(manifest).size()) + kChunkDigits * chunks;
}

CheckpointSize size_of(const CheckpointOutline& outline) {
  const LayoutRequest request{.tensors = outline.tensors,
                              .state_bytes = filled_up(outline.state_bytes),
                              .config_bytes = filled_up(outline.config_bytes),
                              .step = outline.step,
                              .world = outline.world,
                              .zero_stage = outline.zero_stage};
  const Manifest manifest = planned_manifest(request, lay_out(request));
  CheckpointSize size{.data_file = manifest.file_bytes, .manifest = manifest_bytes(manifest)};
  for (const CheckpointTensor& tensor : manifest.tensors) size.tensors += tensor.bytes;
  return size;
}

}  // namespace octet::checkpoint
