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

  /// Takes the pages of elements [begin, begin + count) of a tensor out of this process, which has read what
  /// it wants of them; they are read again where that is asked for.
  void leave(const std::string& name, std::int64_t begin, std::int64_t count) const;

  /// Replaces tensors of stacked experts, "….experts.gate_up_proj" [experts, 2 * width, hidden] and
  /// "….experts.down_proj" [experts, hidden, width], by the matrices of each expert:
  /// "….experts.0.gate_proj.weight". Returns the names of the stacked tensors, each with the names of its
  /// parts.
  std::map<std::string, std::vector<std::string>> split_experts();

  /// The bytes of a tensor as stored; valid while this object lives, aligned to nothing.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;

 private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor that lies in other values than those that it stands for, with what belongs to it.
struct QuantisedTensor {
  enum class Format {
    nf4,        ///< as bitsandbytes writes it (octet/ops/nf4.h)
    fp8_blocks  ///< E4M3 with a scale for each 128 x 128 elements in "<name>_scale_inv" (DeepSeek-V3)
  };
  Format format = Format::nf4;
  TensorHeader header;     ///< dtype and shape of what it stands for
  std::int64_t count = 0;  ///< its elements
  const StoredTensor* codes = nullptr;
  const StoredTensor* scales = nullptr;  ///< nf4: f32, or with `nested` u8
  const StoredTensor* nested = nullptr;  ///< scales of scales
  float nested_offset = 0;
};

/// The weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
/// Tensors that are quantised read as the values that they stand for; what belongs to them is no tensor of
/// its own.
class WeightFolder {
 public:
  /// Throws Error when the folder holds neither, when the index names anything but plain file names, and when
  /// a tensor is missing, stands in two shards, or lies in another shard than the index says; and when the
  /// parts of a quantised tensor do not fit each other, or are of a kind that is not read.
  explicit WeightFolder(const std::string& folder, const std::string& stem = "model");

  /// True when the folder holds weights to read.
  static bool exists(const std::string& folder, const std::string& stem = "model");

  const std::string& folder() const { return folder_; }
  /// All tensors, shard by shard; those that are quantised with the dtype and shape of what they stand for.
  std::vector<StoredTensor> tensors() const;
  /// Null for a tensor that lies as it is.
  const QuantisedTensor* quantised(const std::string& name) const;
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
  /// Fills a whole array of a tensor in NF4: "<name>" (u8, its codes), "<name>.absmax",
  /// "<name>.nested_absmax",
  /// "<name>.nested_offset". Throws Error for a tensor that has no such array, or in another format.
  void read_stored(const TensorSlice& slice) const;

  /// Of names, dtypes, shapes and, of each tensor, its first and last 64 KiB: what other weights would hardly
  /// share.
  std::string fingerprint() const;

  /// As SafetensorsFile::read.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, std::int64_t* out) const {
    file_of(name).read(name, begin, count, out);
  }

 private:
  const SafetensorsFile& file_of(const std::string& name) const;
  std::span<const std::byte> bytes(const StoredTensor& tensor) const {
    return file_of(tensor.name).bytes(tensor);
  }
  /// SafetensorsFile::split_experts() of all files.
  void split_experts();
  void find_quantised();
  void find_nf4(const StoredTensor& state);
  void find_fp8_blocks(const StoredTensor& scales);
  void decode_nf4(const QuantisedTensor& tensor, std::int64_t begin, std::int64_t count, float* out) const;
  void decode_fp8(const QuantisedTensor& tensor, std::int64_t begin, std::int64_t count, float* out) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> file_by_tensor_;
  std::unordered_map<std::string, QuantisedTensor> quantised_;
  std::set<std::string> parts_;  ///< names of what belongs to these
};

}  // namespace octet::checkpoint
