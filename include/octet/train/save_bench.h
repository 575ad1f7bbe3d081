#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/runtime/session.h"

namespace octet::train {

struct SaveBenchOptions {
  std::string folder;      ///< in which a folder of its own is made, and removed
  std::int64_t bytes = 0;  ///< of a checkpoint, over all ranks
  std::int64_t turns = 5;
};

/// Seconds of each turn, the slowest rank's. A turn writes the same bytes of every rank three times: to a
/// file of each rank's own with one write after the other (through the page cache, then past it), and as a
/// checkpoint, each from a removed file to synced bytes.
struct SaveBenchResult {
  std::int64_t bytes = 0;  ///< that a turn writes each time
  std::vector<double> buffered, direct;
  std::vector<double> saved;   ///< past the page cache, as a run saves
  std::vector<double> copied;  ///< the copy of the state before them
  bool has_direct = true;      ///< false: the file system has no direct writes, and `direct` is empty

  /// Rate of saves over the better of the two raw rates, medians.
  double ratio() const;
};

/// Alternates raw writes and saves of the same bytes in the same processes. All ranks call it. Throws Error
/// when the folder does not take them.
SaveBenchResult bench_saves(runtime::Session& session, const SaveBenchOptions& options);

}  // namespace octet::train
