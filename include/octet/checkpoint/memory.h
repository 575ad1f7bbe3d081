// Checkpoints in the memory of the hosts: a tier above the disk, for a run that is started again at once.
//
// Each rank writes its part into a file of its host's memory file system, which outlives ranks and launcher,
// and a rank of another host a copy of it there, where there are several hosts. There are two generations,
// written in turn, so that whatever ends a run while one is written leaves the other. A start asks all hosts
// what they have: the newest checkpoint of which every part holds somewhere is gone on from, on any ranks.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/memory_folder.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/job.h"

namespace octet::checkpoint {

struct MemoryOptions {
  std::string folder;    ///< of this host: memory_folder()
  std::string identity;  ///< the same in all starts of a run: other parts are not taken
  std::string keeper;    ///< the program that start_memory_keeper() starts; empty: none is
};

/// What became of a checkpoint, the same on all ranks.
struct Taken {
  std::int64_t step = 0;
  bool whole = false;      ///< all parts hold
  bool copied = false;     ///< and a copy of each on another host
  double seconds = 0;      ///< from the beginning to the end, rank 0's
  std::string wrong = {};  ///< why not whole, or not copied where there are other hosts
};

/// What a start goes on from.
struct MemoryFound {
  Checkpoint checkpoint;
  bool other_host = false;  ///< some parts hold only as copies
};

/// All ranks call its functions alike, and get the same answers.
class MemoryTier {
 public:
  /// Holds the host's folder, on all hosts. Collective; throws Error on all ranks where a host's cannot be
  /// had.
  MemoryTier(comm::Job& job, MemoryOptions options);
  /// Waits for what is under way. Folders stay.
  ~MemoryTier();
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  /// Throws Error (usage), on all ranks, where a host has no room for what its ranks, with parts of these
  /// slices' size, and those of which it keeps copies, will take.
  void require_room(const std::vector<TensorSlice>& slices);

  /// The newest checkpoint of which every part holds; nothing where there is none. What does not hold is
  /// named.
  std::optional<MemoryFound> find();

  /// Takes a checkpoint over the older generation: the slices' memory may change when it is back. What is
  /// left (verifying, copies on other hosts) is done when wait() is back, by a thread of its own with
  /// `beside`. Waits for the one before. A checkpoint that fails leaves the other generation, and ends no
  /// run.
  void take(const CheckpointContents& contents, bool beside);
  /// Waits for the last take(), and says what became of it; nothing where that is known already.
  std::optional<Taken> wait();
  /// Of this rank: wait() would be back at once with something.
  bool is_ready() const;

  /// Drops what is in memory: the run goes back behind it.
  void forget();
  /// Removes the folders of all hosts: the run has ended.
  void remove();

 private:
  struct Work;
  Taken finish(Work& work);
  void exchange(comm::Channel& channel, bool sends, Work& work);
  /// Members of the group whose parts this rank keeps copies of.
  std::vector<int> senders(const comm::Channel& channel) const;
  std::string slot_folder(int slot) const;
  std::vector<std::string> expected_names() const;

  comm::Job& job_;
  MemoryOptions options_;
  std::unique_ptr<comm::Channel> channel_;             ///< of all ranks, for the thread
  std::vector<std::unique_ptr<comm::Channel>> pairs_;  ///< by round
  std::optional<MemoryHold> hold_;
  int next_ = 0;  ///< the generation that is written next
  std::unique_ptr<Work> work_;
  std::future<Taken> beside_;
};

}  // namespace octet::checkpoint
