// Saving a checkpoint: all ranks together, each writing the slices it owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/tensor_slice.h"
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
  Json state;               ///< rank 0's is saved
  std::string config_yaml;  ///< rank 0's is saved
};

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
