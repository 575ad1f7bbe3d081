// Small blocking messages between ranks, from host memory, separate from the data plane.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace octet::comm {

/// The position of a rank among the ranks of a job, or of a group of them.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of its node
  int local_size = 1;
  int node = 0;  ///< nodes are numbered in the order of their lowest ranks
  int nodes = 1;
  std::string host;
  std::vector<int> node_of = {0};  ///< by rank
};

/// Host-side messages among some ranks. Messages of one channel never match messages of another, and no
/// channel waits for another. All ranks of a channel make the same calls in the same order. One thread at a
/// time uses a channel; different threads may use different channels. Errors of the transport end the job.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Returns this rank's place in the channel. All functions below count ranks within the channel.
  virtual const Place& place() const = 0;
  int rank() const { return place().rank; }
  int size() const { return place().size; }
  /// Returns the rank in the job of the given rank of the channel.
  virtual int rank_of_job(int rank) const = 0;

  /// Returns the bytes of `root` on all ranks. For typed values see octet/comm/serialize.h.
  virtual std::string broadcast(const std::string& bytes, int root) = 0;
  /// Returns the bytes of all ranks, by rank, on every rank.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
  void barrier() { all_gather_bytes({}); }
  virtual std::vector<std::int64_t> all_gather_int(std::int64_t value);
  std::int64_t all_min(std::int64_t value);
  std::int64_t all_max(std::int64_t value);
  std::int64_t all_sum(std::int64_t value);

  /// Runs `work` on every rank. If it throws an Error on any rank, all ranks throw. The lowest failing rank
  /// throws its Error with its rank and host added. The other ranks throw a silent Error (empty
  /// problem().what), so one message is printed and all ranks end.
  void together(const std::function<void()>& work);
  /// Runs `attempt` on every rank. Returns an empty string if all ranks succeed. Otherwise returns the
  /// message of the lowest rank that threw an Error, equal on all ranks.
  std::string agreed(const std::function<void()>& attempt);
};

}  // namespace octet::comm
