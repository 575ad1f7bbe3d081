// The checkpoint room stores training state on disk and exports it. Weights in Hugging Face formats are in
// octet/weights.
//
// A checkpoint is a folder `checkpoint-<step>` with two files. `checkpoint.h5` is an ordinary HDF5 file. Its
// datasets are the logical tensors, never shards, so h5py can read it, and any world size and ZeRO stage can
// load it. `manifest.json` lists the offset of each tensor and holds XXH3 hashes of every byte. It is written
// last, and then the folder is renamed to its final name, so a checkpoint is either complete or absent.
//
// libhdf5 does not handle full disks or damaged files reliably. Therefore it only computes the layout of a
// file, in memory. Ranks write and read the tensors with pwrite and pread, and loading never parses HDF5.
// Other rooms refer to tensors by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/base/tensor_slice.h"
#include "octet/comm/channel.h"
#include "octet/weights/tensor_header.h"

namespace octet::comm {
class Channel;
}

namespace octet::checkpoint {

/// Tensors are hashed in chunks of this many bytes, counted from the tensor's first byte.
inline constexpr std::int64_t kChunkBytes = 1 << 20;

/// A tensor of a checkpoint.
struct CheckpointTensor : weights::TensorHeader {
  std::int64_t offset = 0;  ///< offset of its first byte in the file
  std::int64_t bytes = 0;
  /// Hash of dtype, shape and values, independent of the writing ranks: 32 hexadecimal digits.
  std::string hash;
  std::vector<std::uint64_t> chunks;  ///< XXH3-64 of each chunk
};

/// A run of bytes in the file, and its XXH3-128.
struct TextBlock {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::string hash;
};

/// The contents of manifest.json. They are checked for consistency: offsets inside the file, sizes against
/// shapes, and the number of hashes.
struct Manifest {
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
  std::string file;  ///< name of the data file, without its folder
  std::int64_t file_bytes = 0;
  std::string layout_hash;  ///< hash of the bytes outside all tensors and texts
  TextBlock state, config;
  std::vector<CheckpointTensor> tensors;
};

/// Interface by which Checkpoint reads a checkpoint in host memory (octet/memory_tier/memory_tier.h).
class SharedState {
 public:
  virtual ~SharedState() = default;
  /// Returns a description for messages, for example "memory of the hosts, step 12".
  virtual const std::string& words() const = 0;
  /// Returns step, ranks, stage and tensors, without hashes and offsets.
  virtual const Manifest& manifest() const = 0;
  virtual const std::string& state() const = 0;
  virtual const std::string& config_yaml() const = 0;
  /// Fills slices that fit the tensors (Checkpoint::require_fit). Collective. Throws Error on all ranks.
  virtual void read(comm::Channel& channel, const std::vector<TensorSlice>& slices) const = 0;
  /// Releases the memory. No reads are allowed afterwards.
  virtual void close() = 0;
};

/// A checkpoint opened for reading, on disk or in host memory (octet/memory_tier/memory_tier.h). Several
/// threads may read it concurrently.
class Checkpoint {
 public:
  /// Reads and verifies the manifest (including its own hash), size and layout of the data file, state and
  /// config. Throws Error naming a file that is missing, damaged or of another version.
  explicit Checkpoint(const std::string& path);
  /// Opens a checkpoint in host memory. The caller has verified its parts. Its tensors have no hashes.
  explicit Checkpoint(std::shared_ptr<SharedState> state);
  ~Checkpoint();
  Checkpoint(Checkpoint&& other) noexcept;
  Checkpoint& operator=(Checkpoint&& other) noexcept;

  /// Returns the path of the folder, or a description for messages if the checkpoint is in memory.
  const std::string& path() const { return path_; }
  /// Returns the checkpoint in host memory, or null for a checkpoint on disk. Only read_together() may read a
  /// checkpoint in host memory.
  const SharedState* memory() const { return memory_.get(); }
  /// Releases the memory of a checkpoint in host memory, after reading.
  void close_memory();
  const Manifest& manifest() const { return manifest_; }
  std::int64_t step() const { return manifest_.step; }
  /// Returns the trainer state passed to save(): schedule, counters, data position, random counters.
  const Json& state() const { return *state_; }
  const std::string& config_yaml() const { return config_yaml_; }

  const std::vector<CheckpointTensor>& tensors() const { return manifest_.tensors; }
  const CheckpointTensor* find(const std::string& name) const;
  /// Like find(), but throws Error naming the tensor, the checkpoint and the nearest name.
  const CheckpointTensor& at(const std::string& name) const;

  /// Returns the tensor of a slice. Throws Error (usage) if it is missing, or has another shape or kind of
  /// dtype.
  const CheckpointTensor& require_fit(const TensorSlice& slice) const;
  /// Fills every slice (host memory) with its elements. Reads only the chunks that contain them. A slice must
  /// have the shape of its tensor. Another float dtype is converted (round to nearest even). Throws Error for
  /// a missing tensor, another shape or kind of dtype, and, with `verify`, for chunks with a wrong hash.
  void read(const std::vector<TensorSlice>& slices, bool verify = true) const;
  /// Reads elements [begin, begin + count) of a float tensor as float.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;

  /// Divides all chunks into `shares` equal shares, and hashes the chunks of share number `share`. Throws
  /// Error naming the tensor and the bytes of the first chunk with a wrong hash.
  void verify(int share = 0, int shares = 1) const;
  /// Hashes all chunks of one tensor. Throws Error like the other verify().
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
  std::shared_ptr<SharedState> memory_;
  Manifest manifest_;
  JsonMember state_;
  std::string config_yaml_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace octet::checkpoint

namespace octet::checkpoint {

// Collective reading of a checkpoint.

/// Fills the slices of every rank like Checkpoint::read. If all ranks of several hosts need the same slices
/// (parameters and moments of ZeRO-0), each rank reads and verifies a share and sends it to the others. The
/// file system then serves every byte once. Otherwise each rank reads its slices itself. On one host this is
/// faster, because the bytes are in the page cache after the first rank has read them. A rank needs about 32
/// MiB of additional memory.
///
/// Collective. Throws Error on all ranks (Channel::together): `no_valid_checkpoint` for damaged bytes,
/// `usage` for slices that do not fit the checkpoint.
void read_together(comm::Channel& channel, const Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& slices);

}  // namespace octet::checkpoint
