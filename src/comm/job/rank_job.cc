#include "job/rank_job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device_collectives.h"
#include "messages/message_collectives.h"
#include "messages/message_set.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/timing.h"
#include "octet/comm/serialize.h"

namespace octet::comm {

// Agreement on a lane for a group. Every rank of the job states its group, and the lane is opened on all
// ranks only if they agree.

/// The request of a rank.
struct LaneRequest {
  std::string group;        ///< the name of its group, the same on all ranks
  std::vector<int> ranks;   ///< of its group
  std::vector<int> queues;  ///< purposes of its lanes
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& group& ranks& queues;
  }
};

/// Returns the conflict between the requests (by rank) as text, equal on all ranks. Empty: no conflict.
std::string disagreement(const std::vector<LaneRequest>& requests);

/// Gathers all ranks' requests over the call's lane. Then opens the lanes of this rank and stores their
/// numbers in *ids, or stores the reason for failure in *trouble. Both must outlive the coroutine.
Steps open_lanes_steps(Call& call, LaneRequest mine, std::vector<int>* ids, std::string* trouble);

namespace {

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string words(int rank, const LaneRequest& request) {
  return "rank " + std::to_string(rank) + " means '" + request.group + "' of ranks " + listed(request.ranks);
}

}  // namespace

std::string disagreement(const std::vector<LaneRequest>& requests) {
  const int size = static_cast<int>(requests.size());
  for (int rank = 0; rank < size; ++rank) {
    const LaneRequest& mine = requests[static_cast<std::size_t>(rank)];
    const bool in_order = std::ranges::is_sorted(mine.ranks, std::less_equal<>());
    if (!in_order || mine.ranks.empty() || mine.ranks.front() < 0 || mine.ranks.back() >= size ||
        std::ranges::find(mine.ranks, rank) == mine.ranks.end()) {
      return words(rank, mine) + ", which is no group of its own among " + std::to_string(size);
    }
    if (mine.group != requests.front().group || mine.queues != requests.front().queues) {
      return words(0, requests.front()) + ", " + words(rank, mine);
    }
    for (const int peer : mine.ranks) {
      const LaneRequest& other = requests[static_cast<std::size_t>(peer)];
      if (other.ranks != mine.ranks) return words(rank, mine) + ", " + words(peer, other);
    }
  }
  return {};
}

Steps open_lanes_steps(Call& call, LaneRequest mine, std::vector<int>* ids, std::string* trouble) {
  std::vector<std::string> all;
  Steps gather = all_gather_bytes_steps(call, to_bytes(mine), &all);
  while (!gather.resume()) co_await pause;
  std::vector<LaneRequest> requests;
  for (const std::string& bytes : all) requests.push_back(from_bytes<LaneRequest>(bytes));
  *trouble = disagreement(requests);
  if (!trouble->empty()) co_return;
  // All communication threads have arrived here, or need no more messages of this one to arrive. Opening
  // waits for these threads, but not for their programs.
  for (const int queue : mine.queues) {
    ids->push_back(call.transport->open_lane(static_cast<Queue>(queue), mine.ranks));
  }
}

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

namespace {

Lane main_lane(const RankOptions& options, const Place& place) {
  if (options.engine != nullptr) return options.engine->control();
  return {.id = options.transport->open_lane(Queue::control, {0}),
          .queue = Queue::control,
          .name = name_of(Queue::control),
          .place = place,
          .ranks = {0}};
}

}  // namespace

RankJob::RankJob(const RankOptions& options)
    : options_(options),
      transport_(options.engine ? options.engine->transport() : *options.transport),
      place_(options.engine ? options.engine->place() : options.transport->place()),
      control_(std::make_unique<RankChannel>(*this, main_lane(options_, place_))),
      exceptions_at_start_(std::uncaught_exceptions()) {}

// While an exception unwinds, the other ranks may be gone. The owner of the engine ends it after the error is
// printed.
RankJob::~RankJob() {
  const bool orderly = std::uncaught_exceptions() <= exceptions_at_start_;
  if (orderly && options_.engine != nullptr && options_.end_engine) options_.engine->shutdown(std::nullopt);
}

std::unique_ptr<Collectives> RankJob::collectives(const Group& group, Device& device, Carrying carrying) {
  // Ranks that are threads imitate GPUs if the options select it.
  const bool exchanges =
      device.kind() == DeviceKind::cuda ||
      (options_.engine != nullptr && !options_.engine->is_process() && carrying.carrier != Carrier::messages);
  if (group.size() > 1 && exchanges)
    return std::make_unique<DeviceCollectives>(device, *this, group, carrying);
  return std::make_unique<MessageCollectives>(device, *this, group);
}

std::unique_ptr<Channel> RankJob::channel(const std::string& name) {
  return channel(name, {.name = "all", .ranks = all_ranks(place_.size)});
}

std::unique_ptr<Channel> RankJob::channel(const std::string& name, const Group& group) {
  Lane lane = control_->open_lanes("channel " + name, group.ranks, {Queue::control}).front();
  lane.name += " '" + name + "'";
  return std::make_unique<RankChannel>(*this, std::move(lane), name);
}

std::shared_ptr<Timed> RankJob::begin(Kind kind, const Lane& lane, unsigned sequence, const char* name,
                                      std::int64_t bytes) {
  auto timed = std::make_shared<Timed>();
  timed->kind = kind;
  timed->operation.what = name_of(kind);
  if (name[0] != '\0') timed->operation.what += std::string(" '") + name + "'";
  Call& call = timed->operation.call;
  call.transport = &transport_;
  call.lane = &lane;
  call.sequence = sequence;
  call.tag = tag_of(kind, sequence);
  timed->operation.bytes = bytes;
  if (options_.engine != nullptr) {
    timed->operation.traced = options_.engine->traces().posted(
        {.kind = kind, .name = name, .queue = lane.name, .sequence = sequence, .bytes = bytes});
  }
  return timed;
}

void RankJob::run(const std::shared_ptr<Timed>& timed) {
  timed->start = Clock::now();
  if (options_.engine != nullptr) {
    // Shares ownership of `timed` and points to its operation.
    options_.engine->run(std::shared_ptr<Operation>(timed, &timed->operation));
  } else {
    check(timed->operation.steps.resume(), "a world of one rank waits for no other rank");
  }
  meter_.count(timed->kind, {.calls = 1,
                             .bytes_sent = timed->operation.call.bytes_sent,
                             .bytes_between_nodes = timed->operation.call.bytes_between_nodes,
                             .seconds = seconds_since(timed->start)});
}

void RankJob::watch(const WatchOptions& options) {
  if (options_.engine != nullptr) options_.engine->watch(options);
}

std::string RankJob::trace() const {
  return options_.engine != nullptr ? options_.engine->traces().to_json() : "[]";
}

void RankJob::abort(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  if (options_.engine == nullptr) _exit(code);
  const std::string message =
      "rank " + std::to_string(place_.rank) + " ended the job with code " + std::to_string(code);
  options_.engine->end_job(options_.engine->is_process() ? "" : message, code);
  throw Error(Problem{.what = message, .code = static_cast<ExitCode>(code)});
}

}  // namespace octet::comm
