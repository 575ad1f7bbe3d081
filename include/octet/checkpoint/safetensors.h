// Weights as Hugging Face keeps them: one safetensors file or shards with an index. Files are mapped, headers
// are hostile until checked, and any range of a tensor can be read alone, so that each rank touches only the
// bytes it needs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

/// A tensor as a file declares it.
struct StoredTensor : TensorHeader {
  std::int64_t count = 0;   ///< elements
  std::int64_t offset = 0;  ///< of its first byte in `file`
  std::string file;         ///< path
};

/// One safetensors file. The constructor checks everything the header promises (sizes, dtypes, shapes against
/// byte ranges, ranges without holes or overlap that cover the file) and throws Error naming file and tensor;
/// reading cannot run out of the file afterwards. Safe to read from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// nullptr when there is no such tensor.
  const StoredTensor* find(const std::string& name) const;
  /// Throws Error naming the tensor, the file and the nearest name.
  const StoredTensor& at(const std::string& name) const;

  /// Elements [begin, begin + count) in row-major order, converted. Floats read F32, F16, BF16, F64 and FP8
  /// tensors (bf16 rounds to nearest even); integers read integer and BOOL tensors. Throws Error for a
  /// missing tensor, a range outside it, or a dtype of the other kind.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, Bf16* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, std::int64_t* out) const;

  /// The bytes of a tensor as stored; valid while this object lives, aligned to nothing.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;

 private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
class WeightFolder {
 public:
  /// Throws Error when the folder holds neither, when the index names anything but plain file names, and when
  /// a tensor is missing, stands in two shards, or lies in another shard than the index says.
  explicit WeightFolder(const std::string& folder, const std::string& stem = "model");

  /// True when the folder holds weights to read.
  static bool exists(const std::string& folder, const std::string& stem = "model");

  const std::string& folder() const { return folder_; }
  /// All tensors, shard by shard.
  std::vector<StoredTensor> tensors() const;
  const StoredTensor* find(const std::string& name) const;
  /// The tensor `name`, whose shape must be `shape`. Throws Error naming tensor, file, both shapes or the
  /// nearest name.
  const StoredTensor& expect(const std::string& name, const std::vector<std::int64_t>& shape) const;

  /// Throws Error when a tensor whose name begins with `prefix` or "lm_head." is not among `used`: a model
  /// that leaves weights out computes something else. A head beside a tied embedding and the tables of rotary
  /// embeddings that old files hold are no such weights. Warns of other tensors that are left out.
  void require_used(const std::set<std::string>& used, const std::string& prefix) const;

  /// Fills a slice (host memory, f32) of a tensor with its shape, as SafetensorsFile::read.
  void read(const TensorSlice& slice) const;

  /// Of names, dtypes, shapes and, of each tensor, its first and last 64 KiB: what other weights would hardly
  /// share.
  std::string fingerprint() const;

  /// As SafetensorsFile::read.
  template <class T>
  void read(const std::string& name, std::int64_t begin, std::int64_t count, T* out) const {
    file_of(name).read(name, begin, count, out);
  }

 private:
  const SafetensorsFile& file_of(const std::string& name) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> file_by_tensor_;
};

}  // namespace octet::checkpoint
