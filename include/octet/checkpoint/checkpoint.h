// The checkpoint room: training state on disk, and weights as Hugging Face keeps them.
//
// A checkpoint is a folder `checkpoint-<step>` with two files. `checkpoint.h5` is an ordinary HDF5 file whose
// datasets are the logical tensors (never shards), so h5py reads it and any world size and ZeRO stage can
// load it. `manifest.json` says where each tensor lies and holds XXH3 hashes of every byte; it is written
// last, and the folder gets its name by a rename: a checkpoint is there whole or not at all.
//
// libhdf5 only lays files out, in memory. Ranks write and read the bulk with pwrite and pread at the offsets,
// and loading never parses HDF5: the library takes neither a full disk nor a damaged file well. Rooms above
// know tensors by name; only this room knows files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

/// Tensors are hashed in chunks of this many bytes, counted from the tensor's first byte.
inline constexpr std::int64_t kChunkBytes = 1 << 20;

/// A tensor of a checkpoint.
struct CheckpointTensor : TensorHeader {
  std::int64_t offset = 0;  ///< of its first byte in the file
  std::int64_t bytes = 0;
  std::string hash;  ///< of dtype, shape and values, whoever wrote them: 32 hexadecimal digits
  std::vector<std::uint64_t> chunks;  ///< XXH3-64 of each chunk
};

/// A run of bytes in the file, and its XXH3-128.
struct TextBlock {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::string hash;
};

/// What manifest.json says, checked against itself: offsets inside the file, sizes against shapes, hashes of
/// the right number.
struct Manifest {
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
  std::string file;  ///< plain name of the data file
  std::int64_t file_bytes = 0;
  std::string layout_hash;  ///< of the bytes of the file that belong to no tensor and no text
  TextBlock state, config;
  std::vector<CheckpointTensor> tensors;
};

class MemoryParts;

/// A checkpoint opened for reading, on disk or (octet/checkpoint/memory.h) in the memory of hosts. Safe to
/// read from several threads.
class Checkpoint {
 public:
  /// Reads and verifies the manifest (its own hash included), the data file's size and layout, state and
  /// config. Throws Error naming the file that is missing, damaged or of another version.
  explicit Checkpoint(const std::string& path);
  /// One in memory, whose parts hold. Its tensors have no hashes of their own.
  explicit Checkpoint(std::shared_ptr<MemoryParts> parts);
  ~Checkpoint();
  Checkpoint(Checkpoint&& other) noexcept;
  Checkpoint& operator=(Checkpoint&& other) noexcept;

  /// Of its folder; of one in memory, words for messages.
  const std::string& path() const { return path_; }
  /// Null: it lies on disk. Else read_together() alone reads it, and was told before that all of it holds.
  const MemoryParts* memory() const { return memory_.get(); }
  /// Lets the memory of one in memory go, once it is read.
  void close_memory();
  const Manifest& manifest() const { return manifest_; }
  std::int64_t step() const { return manifest_.step; }
  /// Schedule, counters, data position, random counters: what the trainer gave to save.
  const Json& state() const { return *state_; }
  const std::string& config_yaml() const { return config_yaml_; }

  const std::vector<CheckpointTensor>& tensors() const { return manifest_.tensors; }
  const CheckpointTensor* find(const std::string& name) const;
  /// Throws Error naming the tensor, the checkpoint and the nearest name.
  const CheckpointTensor& at(const std::string& name) const;

  /// Throws Error (usage) where the slice's tensor is not there, or has another shape or kind of dtype.
  const CheckpointTensor& require_fit(const TensorSlice& slice) const;
  /// Fills every slice (host memory) with its elements; touches only the chunks that cover them. The shape
  /// must be the tensor's; another float dtype is converted (round to nearest even). Throws Error for a
  /// missing tensor, another shape or kind, and, with `verify`, for chunks whose hash does not hold.
  void read(const std::vector<TensorSlice>& slices, bool verify = true) const;
  /// Elements [begin, begin + count) of a float tensor as float.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;

  /// Hashes this share of all chunks; throws Error naming tensor and place of the first that does not hold.
  void verify(int share = 0, int shares = 1) const;
  /// The same of all of one tensor.
  void verify(const CheckpointTensor& tensor) const;

 private:
  /// Opens the data file and reads the state and the configuration from it.
  void open_data();
  void read_chunk(const CheckpointTensor& tensor, std::int64_t chunk, std::byte* out, bool verify) const;
  void read_bytes(std::int64_t offset, void* out, std::int64_t bytes) const;
  std::string read_text(const TextBlock& block, const char* what) const;

  std::string path_;
  std::string data_path_;
  int fd_ = -1;
  std::shared_ptr<MemoryParts> memory_;
  Manifest manifest_;
  JsonMember state_;
  std::string config_yaml_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace octet::checkpoint
