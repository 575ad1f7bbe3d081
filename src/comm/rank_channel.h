// A channel of ranks that exist: every call is a request to the communication thread, on a lane of the
// channel's own.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "octet/comm/channel.h"
#include "transport.h"

namespace octet::comm {

class RankJob;

class RankChannel final : public Channel {
 public:
  /// `job` outlives it. `title` is what traces call it.
  RankChannel(RankJob& job, Lane lane, std::string title = {});

  const Place& place() const override { return lane_.place; }
  int rank_of_job(int rank) const override { return lane_.ranks.at(static_cast<std::size_t>(rank)); }
  std::string broadcast(const std::string& bytes, int root) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;

  /// A barrier of ranks that have done their work: those who miss one in another collective are told so.
  void barrier_at_end();
  /// Opens lanes of these kinds for a group of ranks of the job. The channel is of all ranks, each of which
  /// names its own group. Throws Error, on all ranks, where they do not agree.
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
