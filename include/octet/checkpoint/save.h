// Saving a checkpoint: all ranks together, each writing the slices it owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/tensor_header.h"
#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// What one rank gives to a checkpoint.
///
/// Names decide where a tensor lies in the HDF5 file: a name without '/' in /parameters, "exp_avg/<name>" and
/// "exp_avg_sq/<name>" in /optimizer, any other in the group it names ("fp8/weights/scale" in /fp8/weights).
struct CheckpointContents {
  std::int64_t step = 0;
  int zero_stage = 0;
  /// Owned by this rank, in host memory that does not change until save returns (a snapshot, when training
  /// goes on meanwhile). Over all ranks every element of every tensor must be given exactly once.
  std::vector<TensorSlice> slices;
  /// Past the page cache, where the file system allows that: it costs the kernel no copy into cold memory,
  /// and whoever goes on with other work keeps what is cached.
  bool direct = false;
  JsonMember state;           ///< rank 0's is saved
  std::string config_yaml;  ///< rank 0's is saved
};

/// What decides the size of a checkpoint.
struct CheckpointOutline {
  std::vector<TensorHeader> tensors;  ///< by name, ascending
  /// Of the texts of the state and the configuration. They lie in multiples of 16 KiB, so that a checkpoint
  /// has the same size at every step that has as many digits.
  std::int64_t state_bytes = 0;
  std::int64_t config_bytes = 0;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
};
struct CheckpointSize {
  std::int64_t tensors = 0;    ///< values alone, which lie in the data file
  std::int64_t data_file = 0;  ///< checkpoint.h5
  std::int64_t manifest = 0;   ///< manifest.json
  std::int64_t all() const { return data_file + manifest; }
};
/// The sizes of the files that save() writes, to the byte.
CheckpointSize size_of(const CheckpointOutline& outline);

/// Writes `<output_dir>/checkpoint-<step>` and returns its path. Collective, on the control plane only. When
/// it returns, the checkpoint survives a kill and a power loss; an older checkpoint of the same step is
/// replaced in one rename.
///
/// Throws Error on all ranks (see Channel::together) when the disk is full (found before anything is
/// written, where the file system can tell), the folder cannot be written or is not shared by all nodes,
/// writing fails, or the slices do not cover their tensors exactly once; then the temporary folder is gone
/// and older checkpoints are as they were.
///
/// For crash tests, the environment variable OCTETRUN_FAILPOINT=<name>[:<count>] kills the process (SIGKILL)
/// at the count-th passing of before_write, mid_write (after a slice), before_fsync, before_manifest,
/// before_rename, after_rename or before_prune (in rotate); "full_disk" plays one in folders that hold a file
/// "disk-is-full".
std::string save(comm::Channel& channel, const std::string& output_dir, const CheckpointContents& contents);

}  // namespace octet::checkpoint
