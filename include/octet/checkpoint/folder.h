// The checkpoints of an output folder: which exist, which is the newest that holds, which may go.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// "checkpoint-120".
std::string folder_name(std::int64_t step);

/// Steps and paths of all folders `checkpoint-<step>`, oldest first, valid or not. Empty when `output_dir`
/// does not exist.
std::vector<std::pair<std::int64_t, std::string>> list_checkpoints(const std::string& output_dir);

struct FindOptions {
  bool verify_data = true;  ///< hash every byte (shared among the ranks), not only manifest and layout
  std::int64_t before_step = std::numeric_limits<std::int64_t>::max();  ///< only older ones
};

struct Found {
  std::string path;  ///< of the newest valid checkpoint; empty when there is none
  /// Newer ones that do not hold, and why (an Error's message).
  std::vector<std::pair<std::string, std::string>> rejected;
};

/// Collective: all ranks get rank 0's choice. Checkpoints that do not hold, for whatever reason, are skipped
/// with a warning. Rank 0 removes temporary folders that a killed run left: the caller holds `output_dir`
/// (FolderLock), so that no living run may be saving to it.
Found find_latest(comm::Channel& channel, const std::string& output_dir, const FindOptions& options = {});

/// The checkpoint that a user means by `path`: itself, or, when it is an output folder, the newest in it
/// whose manifest holds. Throws Error when there is none. Not collective, removes nothing.
std::string resolve_checkpoint(const std::string& path);

/// Throws Error (ExitCode::no_valid_checkpoint) when `path` is named checkpoint-<another step>. Other names
/// say nothing.
void require_own_name(const std::string& path, std::int64_t step);

/// Removes temporary folders that a killed run left in an output folder, which the caller holds (FolderLock).
/// Called by one rank.
void remove_stale(const std::string& output_dir);

/// Removes old checkpoints; called by one rank. Keeps the newest `keep_last` valid ones (0 keeps all) and the
/// folder `keep_best` (a path or a plain name; may be empty). Folders without a valid manifest are neither
/// counted nor touched. With `counting`, only checkpoints of these steps count; others go with the old ones.
/// A folder that is going is renamed first, so that a kill leaves no half checkpoint.
void rotate(const std::string& output_dir, std::int64_t keep_last, const std::string& keep_best = "",
            const std::set<std::int64_t>* counting = nullptr);

}  // namespace octet::checkpoint
