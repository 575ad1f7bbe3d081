#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/runtime/session.h"

namespace octet::bench {

struct SaveBenchOptions {
  std::string folder;      ///< a temporary folder is created in it and removed afterwards
  std::int64_t bytes = 0;  ///< size of a checkpoint, over all ranks
  std::int64_t turns = 5;
};

/// Times of the slowest rank in seconds, one per turn. In a turn, each rank writes the same bytes three
/// times: to a plain file through the page cache, to a plain file with O_DIRECT, and as its part of a
/// checkpoint. The file does not exist when a time starts. A time ends when the bytes are on disk.
struct SaveBenchResult {
  std::int64_t bytes = 0;  ///< of all ranks, per write
  std::vector<double> buffered, direct;
  std::vector<double> saved;   ///< checkpoints, which bypass the page cache as in a run
  std::vector<double> copied;  ///< copies of the state to host memory, before each checkpoint
  bool has_direct = true;      ///< false: the file system has no direct writes, and `direct` is empty

  /// Returns the rate of checkpoints divided by the faster rate of plain files, from medians.
  double ratio() const;
};

/// Measures plain writes and checkpoints of the same bytes in turn, in the same processes. Collective. Throws
/// Error if writing to the folder fails.
SaveBenchResult bench_saves(runtime::Session& session, const SaveBenchOptions& options);

}  // namespace octet::bench
