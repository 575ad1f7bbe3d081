#include "job/rank_channel.h"

#include <utility>

#include "job/control.h"
#include "job/lanes.h"
#include "job/rank_job.h"
#include "octet/base/error.h"

namespace octet::comm {

RankChannel::RankChannel(RankJob& job, Lane lane, std::string title)
    : job_(job), lane_(std::move(lane)), title_(std::move(title)) {}

std::vector<std::string> RankChannel::all_gather_bytes(const std::string& bytes) {
  return gather(bytes, false);
}

void RankChannel::barrier_at_end() {
  gather({}, true);
}

std::vector<std::string> RankChannel::gather(const std::string& bytes, bool ends) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> all;
  auto timed =
      job_.begin(Kind::control, lane_, sequence_++, title_.c_str(), static_cast<std::int64_t>(bytes.size()));
  timed->operation.call.ends = ends;
  timed->operation.steps = all_gather_bytes_steps(timed->operation.call, bytes, &all);
  job_.run(std::move(timed));
  return all;
}

std::string RankChannel::broadcast(const std::string& bytes, int root) {
  check(root >= 0 && root < size(), "broadcast's root is a rank");
  const std::scoped_lock lock(mutex_);
  std::string copy = rank() == root ? bytes : std::string();
  auto timed =
      job_.begin(Kind::control, lane_, sequence_++, title_.c_str(), static_cast<std::int64_t>(bytes.size()));
  timed->operation.steps = broadcast_steps(timed->operation.call, &copy, root);
  job_.run(std::move(timed));
  return copy;
}

std::vector<Lane> RankChannel::open_lanes(const std::string& group, const std::vector<int>& ranks,
                                          const std::vector<Queue>& queues) {
  LaneRequest mine{.group = group, .ranks = ranks, .queues = {}};
  for (const Queue queue : queues) mine.queues.push_back(static_cast<int>(queue));
  std::vector<int> ids;
  std::string trouble;
  {
    const std::scoped_lock lock(mutex_);
    auto timed = job_.begin(Kind::control, lane_, sequence_++, "opening lanes", 0);
    timed->operation.steps = open_lanes_steps(timed->operation.call, std::move(mine), &ids, &trouble);
    job_.run(std::move(timed));
  }
  if (!trouble.empty()) {
    // All know it; one says it.
    Problem problem{.what = rank() == 0 ? "the ranks disagree about their groups" : "", .agreed = true};
    if (rank() == 0) {
      problem.expected = "the same groups on all ranks, in the same order";
      problem.found = trouble;
      problem.fix = "give all ranks the same mesh, and open channels in the same order";
    }
    throw Error(std::move(problem));
  }
  std::vector<Lane> lanes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lanes.push_back({.id = ids[i],
                     .queue = queues[i],
                     .name = name_of(queues[i]),
                     .place = place_among(job_.place(), ranks),
                     .ranks = ranks});
  }
  return lanes;
}

}  // namespace octet::comm
