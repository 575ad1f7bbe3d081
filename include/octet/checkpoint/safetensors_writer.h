// Writing safetensors: streaming (a tensor never needs to be whole in memory), and atomic: a file gets its
// name after its last byte is on disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

/// {"format": "pt"}: transformers refuses files without it.
std::map<std::string, std::string> default_metadata();

/// One file. Tensors come in the order of `order()`, each from its first element to its last, in any number
/// of pieces. Without finish() the destructor removes what was written.
class SafetensorsWriter {
 public:
  /// Creates `path` under a temporary name beside it and takes its whole size on disk, so that a full disk
  /// shows here. Throws Error for duplicate names, impossible shapes, a disk that is full or a folder that
  /// cannot be written.
  SafetensorsWriter(const std::string& path, std::vector<TensorHeader> tensors,
                    const std::map<std::string, std::string>& metadata = default_metadata());
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The tensors as they lie in the file: wide dtypes first, so that each is aligned to its elements.
  const std::vector<TensorHeader>& order() const { return tensors_; }
  /// The next `count` elements of the tensor whose turn it is, converted to its dtype (round to nearest even,
  /// FP8 saturating); the dtype must be a float.
  void append(const float* values, std::int64_t count);
  /// The next bytes as they are: whole elements of the tensor whose turn it is.
  void append_bytes(const void* bytes, std::size_t size);
  /// fsyncs the file, which keeps its temporary name. Throws Error when a tensor is incomplete.
  void finish();
  /// Gives the file its name and fsyncs the folder. Calls finish() when that was not done.
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
  std::vector<std::int64_t> remaining_;  ///< bytes of each tensor still to come
  std::size_t turn_ = 0;
  std::vector<std::byte> buffer_;
};

/// The size of a file of these tensors, in any order, to the byte.
std::int64_t safetensors_bytes(std::vector<TensorHeader> tensors,
                               const std::map<std::string, std::string>& metadata = default_metadata());

/// Writes whole tensors (begin 0, count all) to one file.
void write_safetensors(const std::string& path, const std::vector<TensorSlice>& tensors,
                       const std::map<std::string, std::string>& metadata = default_metadata());

/// How tensors are dealt to files: model.safetensors, or model-00001-of-0000N.safetensors of at most
/// `max_bytes` of data each (a larger tensor has a file of its own), in the order given.
struct ShardPlan {
  std::vector<std::string> files;
  std::vector<std::vector<TensorHeader>> tensors;
  std::int64_t total_bytes = 0;
};
ShardPlan plan_shards(const std::vector<TensorHeader>& tensors, std::int64_t max_bytes,
                      const std::string& stem = "model");
/// The text of `<stem>.safetensors.index.json` for a plan of several files.
std::string index_json(const ShardPlan& plan);

}  // namespace octet::checkpoint
