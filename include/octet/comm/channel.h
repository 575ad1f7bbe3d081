// What ranks tell each other beside the data: small, blocking, from memory of the host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace octet::comm {

/// Where a rank stands among the ranks of a job, or of a group of them.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among those of its node
  int local_size = 1;
  int node = 0;  ///< nodes are numbered in the order of their lowest ranks
  int nodes = 1;
  std::string host;
  std::vector<int> node_of = {0};  ///< by rank
};

/// A conversation of some ranks, apart from all others: what is said on one channel never meets what is said
/// on another, and none waits for another. All ranks of a channel make the same calls in the same order. One
/// thread at a time uses a channel; different threads may use different ones. Errors of the transport end the
/// job.
class Channel {
 public:
  virtual ~Channel() = default;
  /// This rank's, among those of the channel. Everything below counts ranks so.
  virtual const Place& place() const = 0;
  int rank() const { return place().rank; }
  int size() const { return place().size; }
  /// The rank of the job that is this one's, or another one's, number in the channel.
  virtual int rank_of_job(int rank) const = 0;

  /// The bytes of `root` on all ranks. For values see octet/comm/serialize.h.
  virtual std::string broadcast(const std::string& bytes, int root) = 0;
  /// Every rank's bytes on every rank, by rank.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
  void barrier() { all_gather_bytes({}); }
  virtual std::vector<std::int64_t> all_gather_int(std::int64_t value);
  std::int64_t all_min(std::int64_t value);
  std::int64_t all_max(std::int64_t value);
  std::int64_t all_sum(std::int64_t value);

  /// Runs `work` on every rank; when it throws an Error anywhere, all ranks throw: the lowest failing rank
  /// the Error itself (with its rank and host added), the others a silent one (problem().what empty), so that
  /// one message is printed and all ranks end.
  void together(const std::function<void()>& work);
  /// Runs `attempt` on every rank: empty when all came through, else what the first one that threw an Error
  /// says, the same on all ranks.
  std::string agreed(const std::function<void()>& attempt);
};

}  // namespace octet::comm
