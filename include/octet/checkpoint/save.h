// Collective saving of a checkpoint: each rank writes the slices that it owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/base/tensor_slice.h"
#include "octet/comm/channel.h"
#include "octet/weights/tensor_header.h"

namespace octet::checkpoint {

/// The contents that one rank passes to a checkpoint.
///
/// Names determine the place of a tensor in the HDF5 file. Names without '/' are in /parameters,
/// "exp_avg/<name>" and "exp_avg_sq/<name>" in /optimizer. Any other name is in the group that it names
/// ("fp8/weights/scale" in /fp8/weights).
struct CheckpointContents {
  std::int64_t step = 0;
  int zero_stage = 0;
  /// Slices owned by this rank, in host memory. It must not change until save returns; use a snapshot if
  /// training continues. All ranks together must pass every element of every tensor exactly once.
  std::vector<TensorSlice> slices;
  /// Bypasses the page cache if the file system supports this. This avoids a copy in the kernel, and
  /// preserves the cached data of other work.
  bool direct = false;
  JsonMember state;         ///< rank 0's is saved
  std::string config_yaml;  ///< rank 0's is saved
};

/// The properties that determine the size of a checkpoint.
struct CheckpointOutline {
  std::vector<weights::TensorHeader> tensors;  ///< sorted by name
  /// Bytes of the state and configuration texts. They are padded to multiples of 16 KiB, so that the size of
  /// a checkpoint depends on the step only through its number of digits.
  std::int64_t state_bytes = 0;
  std::int64_t config_bytes = 0;
  std::int64_t step = 0;
  int world = 1;
  int zero_stage = 0;
};
struct CheckpointSize {
  std::int64_t tensors = 0;    ///< values only, as part of the data file
  std::int64_t data_file = 0;  ///< checkpoint.h5
  std::int64_t manifest = 0;   ///< manifest.json
  std::int64_t all() const { return data_file + manifest; }
};
/// Returns the exact sizes of the files that save() writes.
CheckpointSize size_of(const CheckpointOutline& outline);

/// Writes `<output_dir>/checkpoint-<step>` and returns its path. Collective, on the control plane only. After
/// the return, the checkpoint survives a kill and a power loss. An older checkpoint of the same step is
/// replaced in one rename.
///
/// Throws Error on all ranks (see Channel::together) in these cases:
/// - the disk is full (detected before any write if the file system can report it);
/// - the folder is not writable or not shared by all nodes, or a write fails;
/// - the slices do not cover their tensors exactly once.
/// The temporary folder is then removed, and older checkpoints are unchanged.
///
/// For crash tests, the environment variable OCTETRUN_FAILPOINT=<name>[:<count>] kills the process (SIGKILL)
/// at the count-th pass of the point. Points are before_write, mid_write (after a slice), before_fsync,
/// before_manifest, before_rename, after_rename and before_prune (in rotate). "full_disk" simulates a full
/// disk in folders that contain a file "disk-is-full".
std::string save(comm::Channel& channel, const std::string& output_dir, const CheckpointContents& contents);

}  // namespace octet::checkpoint
