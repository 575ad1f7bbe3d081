#include "job/lanes.h"

#include <algorithm>

#include "job/control.h"
#include "octet/comm/serialize.h"

namespace octet::comm {
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

}  // namespace octet::comm
