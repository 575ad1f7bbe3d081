// Control channel between the ranks of a job. Every call is a request to the communication thread, on the
// channel's own lane.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "messages/transport.h"
#include "octet/comm/channel.h"

namespace octet::comm {

class RankJob;

class RankChannel final : public Channel {
 public:
  /// `job` must outlive the object. `title` is the channel's name in traces.
  RankChannel(RankJob& job, Lane lane, std::string title = {});

  const Place& place() const override { return lane_.place; }
  int rank_of_job(int rank) const override { return lane_.ranks.at(static_cast<std::size_t>(rank)); }
  std::string broadcast(const std::string& bytes, int root) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;

  /// Barrier at the end of the work. If other ranks are in another collective, the error tells them that this
  /// rank has ended.
  void barrier_at_end();
  /// Opens lanes of these kinds for a group of ranks of the job. The channel must span all ranks, and each
  /// rank names its own group. Throws Error on all ranks if they disagree.
  std::vector<Lane> open_lanes(const std::string& group, const std::vector<int>& ranks,
                               const std::vector<Queue>& queues);

 private:
  std::vector<std::string> gather(const std::string& bytes, bool ends);

  RankJob& job_;
  Lane lane_;
  std::string title_;
  unsigned sequence_ = 0;
  std::mutex mutex_;  // one call at a time
};

}  // namespace octet::comm
