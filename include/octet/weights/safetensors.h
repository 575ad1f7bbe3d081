// Reading of Hugging Face weights: one safetensors file, or shards with an index. Files are memory-mapped,
// and headers are untrusted until checked. Any range of a tensor can be read alone, so each rank reads only
// the bytes it needs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/tensor_slice.h"
#include "octet/weights/expert_stacks.h"
#include "octet/weights/tensor_header.h"

namespace octet::weights {

/// A tensor as declared in a file.
struct StoredTensor : TensorHeader {
  std::int64_t count = 0;   ///< elements
  std::int64_t offset = 0;  ///< offset of its first byte in `file`
  std::string file;         ///< path
};

/// One safetensors file. The constructor checks the header: sizes, dtypes, shapes against byte ranges, and
/// ranges that cover the file without gaps or overlap. It throws Error naming file and tensor. Later reads
/// cannot exceed the file. Several threads may read it concurrently.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// Returns the tensors in the order of their offsets.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Returns nullptr if there is no such tensor.
  const StoredTensor* find(const std::string& name) const;
  /// Like find(), but throws Error naming the tensor, the file and the nearest name.
  const StoredTensor& at(const std::string& name) const;

  /// Reads elements [begin, begin + count) in row-major order, converted. Float outputs accept F32, F16,
  /// BF16, F64 and FP8 tensors (bf16 rounds to nearest even). Integer outputs accept integer and BOOL
  /// tensors. Throws Error for a missing tensor, a range outside it, or a dtype of the other kind.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, Bf16* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, std::int64_t* out) const;

  /// Drops the pages of elements [begin, begin + count) of a tensor from this process. Later reads load them
  /// again.
  void leave(const std::string& name, std::int64_t begin, std::int64_t count) const;

  /// Replaces tensors of stacked experts, "….experts.gate_up_proj" [experts, 2 * width, hidden] and
  /// "….experts.down_proj" [experts, hidden, width], by the matrices of each expert:
  /// "….experts.0.gate_proj.weight". Returns the names of the stacked tensors, each with the names of its
  /// parts. `except`: tensors that stay as they are.
  std::map<std::string, std::vector<std::string>> split_experts(const std::set<std::string>& except = {});

  /// Returns the bytes of a tensor as stored. Valid while this object lives; may be unaligned.
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;

 private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Throws Error for a tensor that is not among `names`, and names the nearest of them. `where`: a file or
/// folder.
[[noreturn]] void no_such_tensor(const std::string& name, const std::string& where,
                                 const std::vector<std::string>& names);

/// A tensor of a folder, and the file that holds it.
struct PlacedTensor {
  const StoredTensor* tensor = nullptr;  ///< null: there is no such tensor
  const SafetensorsFile* file = nullptr;
  std::span<const std::byte> bytes() const { return file->bytes(*tensor); }
};

/// A quantised tensor, with its scales.
struct QuantisedTensor {
  enum class Format {
    nf4,        ///< format of bitsandbytes (octet/ops/nf4.h)
    fp8_blocks  ///< E4M3 with one scale per 128 x 128 elements in "<name>_scale_inv" (DeepSeek-V3)
  };
  Format format = Format::nf4;
  TensorHeader header;     ///< dtype and shape of the dequantised tensor
  std::int64_t count = 0;  ///< elements of the dequantised tensor
  PlacedTensor codes;
  PlacedTensor scales;  ///< nf4: f32, or with `nested` u8
  PlacedTensor nested;  ///< scales of the scales, if there are any
  float nested_offset = 0;
};

/// The quantised tensors of a folder. Their parts are found and checked when the folder is opened, and
/// decoded when they are read. The files must outlive this object.
class QuantisedTensors {
 public:
  using Find = std::function<PlacedTensor(const std::string& name)>;

  /// Adds a quantised tensor if `tensor` describes one: the state of an NF4 tensor, or scales of an FP8
  /// tensor. `find` finds the other parts by name. Throws Error if the parts do not match, or have an
  /// unsupported format.
  void add(const PlacedTensor& tensor, const Find& find);
  /// Returns null if the tensor is not quantised.
  const QuantisedTensor* find(const std::string& name) const;
  /// Returns whether `name` is a scale, or another part of a quantised tensor except its codes.
  bool has_part(const std::string& name) const { return parts_.contains(name); }

  /// Reads elements [begin, begin + count), dequantised. Throws std::logic_error for a range outside the
  /// tensor.
  static void read(const QuantisedTensor& tensor, std::int64_t begin, std::int64_t count, float* out);
  /// See WeightFolder::read_stored(). `folder`: for messages.
  void read_stored(const TensorSlice& slice, const std::string& folder) const;

 private:
  void add_nf4(const PlacedTensor& state, const Find& find);
  void add_fp8_blocks(const PlacedTensor& scales, const Find& find);

  std::unordered_map<std::string, QuantisedTensor> tensors_;
  std::set<std::string> parts_;
};

/// The weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
/// Quantised tensors are read as dequantised values; their scales are not listed as tensors. Experts are read
/// as one tensor for each matrix of an expert, also if the files stack them (expert_stacks.h).
class WeightFolder {
 public:
  /// Throws Error if the folder contains neither, or the index names files outside the folder. Throws
  /// Error if a tensor is missing, is in two shards, or is in another shard than the index states. Throws
  /// Error if the parts of a quantised tensor do not match, or have an unsupported format.
  explicit WeightFolder(const std::string& folder, const std::string& stem = "model");

  /// Returns whether the folder contains weights.
  static bool exists(const std::string& folder, const std::string& stem = "model");

  const std::string& folder() const { return folder_; }
  /// Returns all tensors, shard by shard. Quantised tensors have the dtype and shape of the dequantised
  /// values.
  std::vector<StoredTensor> tensors() const;
  /// Returns null if the tensor is not quantised.
  const QuantisedTensor* quantised(const std::string& name) const { return quantised_.find(name); }
  const StoredTensor* find(const std::string& name) const;
  /// How the files store experts.
  ExpertLayout expert_layout() const { return expert_layout_; }
  /// Returns the tensor `name`. Throws Error naming tensor, file, both shapes or the nearest name if it is
  /// missing or its shape is not `shape`.
  const StoredTensor& expect(const std::string& name, const std::vector<std::int64_t>& shape) const;

  /// Throws Error if a tensor with a name that begins with `prefix` or "lm_head." is not in `used`, because a
  /// model without it computes different results. Exceptions are a stored head of a model with tied
  /// embeddings, the rotary tables in old files, and names that begin like one of `unread`. Logs a warning
  /// for other unused tensors.
  void require_used(const std::set<std::string>& used, const std::string& prefix,
                    const std::vector<std::string>& unread = {}) const;

  /// Fills a slice (host memory, f32) of a tensor of the same shape, like SafetensorsFile::read.
  void read(const TensorSlice& slice) const;
  /// Fills a whole array of an NF4 tensor: "<name>" (u8, its codes), "<name>.absmax", "<name>.nested_absmax"
  /// or "<name>.nested_offset". Throws Error if the tensor has no such array, or has it in another format.
  void read_stored(const TensorSlice& slice) const { quantised_.read_stored(slice, folder_); }

  /// Calls `take` with the bytes of a tensor as they are stored, in pieces and in order. A piece is a whole
  /// number of elements and is valid during the call.
  void read_bytes(const std::string& name, const std::function<void(std::span<const std::byte>)>& take) const;

  /// Returns a hash of names, dtypes, shapes, and the first and last 64 KiB of each tensor. Different weights
  /// practically never share it.
  std::string fingerprint() const;

  /// Like SafetensorsFile::read.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  void read(const std::string& name, std::int64_t begin, std::int64_t count, std::int64_t* out) const {
    file_of(name).read(name, begin, count, out);
  }

 private:
  const SafetensorsFile& file_of(const std::string& name) const;
  std::span<const std::byte> bytes(const StoredTensor& tensor) const {
    return file_of(tensor.name).bytes(tensor);
  }
  /// Calls SafetensorsFile::split_experts() for all files.
  void split_experts();
  /// Finds the parts of the experts of expert_stacks.h. Throws Error if codes or scales are missing, or if
  /// shapes do not fit each other.
  void find_expert_parts();
  void find_expert_parts(const std::string& bias);
  /// Finds the layout of stacked experts without biases, and their parts if the inputs are first. Other
  /// layouts are left to split_experts().
  void find_plain_experts(const std::string& gate_up);
  void add_expert_part(const std::string& name, const StoredTensor& from, DType dtype, ExpertPart part);
  void find_quantised();
  /// Returns whether the tensor belongs to another tensor, and is not listed itself.
  bool is_part(const std::string& name) const { return parts_.contains(name) || quantised_.has_part(name); }

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> file_by_tensor_;
  QuantisedTensors quantised_;
  std::set<std::string> parts_;  ///< names of stacked tensors of experts
  /// A tensor of one expert in stacked tensors, and where they are.
  struct OfExpert {
    StoredTensor tensor;
    ExpertPart part;
  };
  std::map<std::string, OfExpert> of_experts_;
  std::vector<std::string> of_experts_in_order_;
  ExpertLayout expert_layout_ = ExpertLayout::separate;
};

}  // namespace octet::weights
