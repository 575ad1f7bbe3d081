#include "outline.h"

#include <hdf5.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "h5_objects.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/save.h"
#include "octet/files/file_io.h"

namespace octet::checkpoint {
namespace {

hid_t h5_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return small_float(2, 8, 7);
    case DType::f16:
      return small_float(2, 5, 10);
    case DType::e5m2:
      return small_float(1, 5, 2);
    case DType::f32:
      return H5Tcopy(H5T_IEEE_F32LE);
    case DType::f64:
      return H5Tcopy(H5T_IEEE_F64LE);
    case DType::i64:
      return H5Tcopy(H5T_STD_I64LE);
    case DType::i32:
      return H5Tcopy(H5T_STD_I32LE);
    case DType::i16:
      return H5Tcopy(H5T_STD_I16LE);
    case DType::i8:
      return H5Tcopy(H5T_STD_I8LE);
    case DType::e4m3:  // HDF5 uses the top exponent for infinities, which E4M3 lacks, so the codes are stored
    case DType::u8:
    case DType::boolean:
      return H5Tcopy(H5T_STD_U8LE);
  }
  return H5I_INVALID_HID;
}

/// Creates the missing parent groups of a dataset. `made` holds the paths of existing groups. (libhdf5 could
/// create them, but would store the time in each group.)
void add_groups(FileInMemory& file, const std::string& path, std::set<std::string>& made) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string group = path.substr(0, end);
    if (made.insert(group).second) file.add_group(group);
  }
}

void check_path(const std::string& path, std::set<std::string>& paths) {
  for (const auto& part : split(std::string_view(path).substr(1), '/')) {
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos ||
        !is_utf8(part)) {
      throw Error({.what = "the name of a tensor is not valid in an HDF5 file",
                   .expected = "UTF-8 without empty parts between '/'",
                   .found = path,
                   .fix = "give the tensor another name"});
    }
  }
  if (path == "/state" || path == "/config" || !paths.insert(path).second)
    throw Error({.what = "two tensors have the same place in an HDF5 file",
                 .found = path,
                 .fix = "give one of the tensors another name"});
}

}  // namespace

std::string dataset_path(const std::string& tensor_name) {
  if (tensor_name.find('/') == std::string::npos) return "/parameters/" + tensor_name;
  if (tensor_name.starts_with("exp_avg/") || tensor_name.starts_with("exp_avg_sq/"))
    return "/optimizer/" + tensor_name;
  return "/" + tensor_name;
}

FileLayout lay_out(const LayoutRequest& request) {
  const std::lock_guard<std::mutex> lock(hdf5_mutex());
  FileLayout layout;
  FileInMemory file(layout.image, request.tensors.size());
  {
    const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose, "root");
    add_text(root, "format", "octet checkpoint");
    add_number(root, "version", 1);
    add_number(root, "step", request.step);
    add_number(root, "world", request.world);
    add_number(root, "zero_stage", request.zero_stage);
  }
  const auto add_string = [&file](const char* path, std::int64_t bytes) {
    const Handle type(string_type(static_cast<std::size_t>(bytes)), H5Tclose, path);
    return file.add_dataset(path, type, {});
  };
  layout.state_offset = add_string("/state", request.state_bytes);
  layout.config_offset = add_string("/config", request.config_bytes);
  std::set<std::string> paths, made;
  for (const auto& tensor : request.tensors) {
    const std::string path = dataset_path(tensor.name);
    check_path(path, paths);
    add_groups(file, path, made);
    const bool plain = tensor.dtype != DType::e4m3 && tensor.dtype != DType::e5m2 &&
                       tensor.dtype != DType::bf16 && tensor.dtype != DType::boolean;
    const Handle type(h5_type(tensor.dtype), H5Tclose, path);
    layout.offsets.push_back(file.add_dataset(path, type, tensor.shape,
                                              plain ? nullptr : std::string(name_of(tensor.dtype)).c_str()));
  }
  file.close();

  layout.file_bytes = layout.image.size;
  return layout;
}

void copy_image(const FileLayout& layout, int fd, const std::string& path) {
  for (const auto& [offset, page] : layout.image.pages()) {
    files::write_at(fd, path, page->data(), std::min(SparseImage::kPage, layout.file_bytes - offset), offset);
  }
}

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
