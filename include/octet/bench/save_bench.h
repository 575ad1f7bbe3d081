#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/runtime/session.h"

namespace octet::bench {

struct SaveBenchOptions {
  std::string folder;      ///< in which a temporary folder is created and removed
  std::int64_t bytes = 0;  ///< size of a checkpoint, over all ranks
  std::int64_t turns = 5;
};

/// Seconds of each turn, on the slowest rank. A turn writes the same bytes of every rank three times. Two are
/// sequential writes to one file per rank: through the page cache, then past it. The third is a checkpoint.
/// Each time starts without the file and ends when the bytes are synced.
struct SaveBenchResult {
  std::int64_t bytes = 0;  ///< written by a turn each time
  std::vector<double> buffered, direct;
  std::vector<double> saved;   ///< past the page cache, like in a run
  std::vector<double> copied;  ///< the preceding copy of the state
  bool has_direct = true;      ///< false: the file system has no direct writes, and `direct` is empty

  /// Rate of saves over the faster raw rate, by medians.
  double ratio() const;
};

/// Alternates raw writes and saves of the same bytes in the same processes. Collective. Throws Error if
/// writing to the folder fails.
SaveBenchResult bench_saves(runtime::Session& session, const SaveBenchOptions& options);

}  // namespace octet::bench
