// Writing of safetensors files. Tensors are streamed, so none needs to be whole in memory. Writes are atomic:
// a file gets its final name after its last byte is on disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/weights/tensor_header.h"

namespace octet::weights {

/// Returns {"format": "pt"}, because transformers rejects files without it.
std::map<std::string, std::string> default_metadata();

/// Writes one file. Tensors must be appended in the order of `order()`, each from its first element to its
/// last, in any number of pieces. Without finish(), the destructor removes the temporary file.
class SafetensorsWriter {
 public:
  /// Creates the file under a temporary name in the folder of `path`. Reserves its full size on disk, so that
  /// a full disk is detected here. Throws Error for duplicate names, invalid shapes, a full disk, or a folder
  /// that is not writable.
  SafetensorsWriter(const std::string& path, std::vector<TensorHeader> tensors,
                    const std::map<std::string, std::string>& metadata = default_metadata());
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Returns the tensors in file order: wide dtypes first, so that each tensor is aligned to its element
  /// size.
  const std::vector<TensorHeader>& order() const { return tensors_; }
  /// Appends the next `count` elements of the current tensor, converted to its dtype (round to nearest even,
  /// FP8 saturating). The dtype must be a float.
  void append(const float* values, std::int64_t count);
  /// Appends bytes unconverted. They must be whole elements of the current tensor.
  void append_bytes(const void* bytes, std::size_t size);
  /// Syncs the file, which keeps its temporary name. Throws Error if a tensor is incomplete.
  void finish();
  /// Renames the file to its final name and syncs the folder. Calls finish() first if needed.
  void publish();

 private:
  void write(const void* bytes, std::size_t size);
  [[noreturn]] void fail(const std::string& what, int code) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool finished_ = false;
  bool published_ = false;
  std::vector<TensorHeader> tensors_;
  std::vector<std::int64_t> remaining_;  ///< remaining bytes of each tensor
  std::size_t turn_ = 0;
  std::vector<std::byte> buffer_;
};

/// Returns the exact size of a file of these tensors, in any order.
std::int64_t safetensors_bytes(std::vector<TensorHeader> tensors,
                               const std::map<std::string, std::string>& metadata = default_metadata());

/// Writes whole tensors (begin 0, count all) to one file.
void write_safetensors(const std::string& path, const std::vector<TensorSlice>& tensors,
                       const std::map<std::string, std::string>& metadata = default_metadata());

/// Assignment of tensors to files, in the given order: model.safetensors, or model-00001-of-0000N.safetensors
/// with at most `max_bytes` of data each. A larger tensor gets its own file.
struct ShardPlan {
  std::vector<std::string> files;
  std::vector<std::vector<TensorHeader>> tensors;
  std::int64_t total_bytes = 0;
};
ShardPlan plan_shards(const std::vector<TensorHeader>& tensors, std::int64_t max_bytes,
                      const std::string& stem = "model");
/// Returns the text of `<stem>.safetensors.index.json` for a plan of several files.
std::string index_json(const ShardPlan& plan);

}  // namespace octet::weights
