// Checkpoints in host memory. A run that restarts immediately reads them faster than checkpoints on disk.
//
// Each rank writes its part to a file in its host's memory file system, which outlives ranks and launcher.
// With several hosts, a rank of another host writes a copy there. Two generations are written alternately, so
// a run that ends during a write leaves the other generation. A restart asks all hosts for their parts. The
// run resumes from the newest checkpoint for which every part is valid on some host, with any number of
// ranks.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/job.h"
#include "octet/memory_tier/memory_folder.h"

namespace octet::memory_tier {

struct MemoryOptions {
  std::string folder;    ///< folder of this host: memory_folder()
  std::string identity;  ///< equal in all starts of a run; parts with another identity are ignored
  std::string keeper;    ///< program for start_memory_keeper(); empty: none is started
};

/// Result of taking a checkpoint, the same on all ranks.
struct Taken {
  std::int64_t step = 0;
  bool whole = false;      ///< all parts are valid
  bool copied = false;     ///< each part also has a valid copy on another host
  double seconds = 0;      ///< total duration on rank 0
  std::string wrong = {};  ///< reason if it is not whole, or is not copied although there are other hosts
};

/// The checkpoint from which a start resumes.
struct MemoryFound {
  checkpoint::Checkpoint checkpoint;
  bool other_host = false;  ///< some parts are valid only as copies
};

/// The memory tier of a run. All ranks must make the same calls, and get the same results.
class MemoryTier {
 public:
  /// Creates and holds the folder on every host. Collective. Throws Error on all ranks if this fails on a
  /// host.
  MemoryTier(comm::Job& job, MemoryOptions options);
  /// Waits for a pending take(). The folders are kept.
  ~MemoryTier();
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  /// Throws Error (usage) on all ranks if a host has too little memory. It needs room for the parts of its
  /// ranks (of the size of `slices`), and for the copies that it keeps.
  void require_room(const std::vector<TensorSlice>& slices);

  /// Returns the newest checkpoint for which every part is valid, or nothing if there is none. Invalid parts
  /// are logged.
  std::optional<MemoryFound> find();

  /// Takes a checkpoint, which replaces the older generation. Copies the slices before it returns, so their
  /// memory may then change. wait() completes the rest (verification, copies on other hosts), or a separate
  /// thread does it if `in_thread` is true. Waits for an earlier take() first. A failed checkpoint
  /// leaves the other generation, and does not end the run.
  void take(const checkpoint::CheckpointContents& contents, bool in_thread);
  /// Waits for the last take() and returns its result. Returns nothing if the result was returned already.
  std::optional<Taken> wait();
  /// Returns whether wait() would return a result on this rank without blocking.
  bool is_ready() const;

  /// Drops the checkpoints in memory, because the run returns to an earlier step.
  void forget();
  /// Removes the folders of all hosts, because the run has ended.
  void remove();

 private:
  struct Work;
  Taken finish(Work& work);
  void exchange(comm::Channel& channel, bool sends, Work& work);
  /// Returns the members of the group that send their parts to this rank for copies.
  std::vector<int> senders(const comm::Channel& channel) const;
  std::string slot_folder(int slot) const;
  std::vector<std::string> expected_names() const;

  comm::Job& job_;
  MemoryOptions options_;
  std::unique_ptr<comm::Channel> channel_;             ///< of all ranks; only the thread of take() uses it
  std::vector<std::unique_ptr<comm::Channel>> pairs_;  ///< a channel for each round of copies between hosts
  std::optional<MemoryHold> hold_;
  int next_ = 0;  ///< the next generation to write
  std::unique_ptr<Work> work_;
  std::future<Taken> pending_;
};

}  // namespace octet::memory_tier
