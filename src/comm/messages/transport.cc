#include "messages/transport.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "octet/base/error.h"

namespace octet::comm {

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"reduce_scatter", "all_gather", "all_reduce_max",
                                   "all_reduce_sum", "control",    "all_gather_values",
                                   "all_to_all",     "send",       "receive"};
  return names[static_cast<int>(kind)];
}

const char* name_of(Queue queue) {
  constexpr const char* names[] = {"gather", "reduce", "control", "end", "roll"};
  return names[static_cast<int>(queue)];
}

int tag_of(Kind kind, unsigned sequence) {
  const Kind on_wire = kind == Kind::receive ? Kind::send : kind;
  return static_cast<int>(on_wire) << 12 | static_cast<int>(sequence & 0xFFFu);
}

void set_nodes(Place& place, const std::vector<int>& node_of) {
  check(static_cast<int>(node_of.size()) == place.size, "every rank is on a node");
  std::unordered_map<int, int> seen;
  place.node_of.clear();
  place.local_rank = place.local_size = 0;
  for (const int node : node_of)
    place.node_of.push_back(seen.emplace(node, static_cast<int>(seen.size())).first->second);
  place.nodes = static_cast<int>(seen.size());
  place.node = place.node_of[static_cast<std::size_t>(place.rank)];
  for (int rank = 0; rank < place.size; ++rank) {
    if (place.node_of[static_cast<std::size_t>(rank)] != place.node) continue;
    ++place.local_size;
    if (rank < place.rank) ++place.local_rank;
  }
}

Place place_among(const Place& job, const std::vector<int>& ranks) {
  const auto found = std::ranges::find(ranks, job.rank);
  check(found != ranks.end(), "a rank has a place in its own group");
  Place place{.rank = static_cast<int>(found - ranks.begin()),
              .size = static_cast<int>(ranks.size()),
              .host = job.host};
  std::vector<int> node_of;
  for (const int rank : ranks) node_of.push_back(job.node_of[static_cast<std::size_t>(rank)]);
  set_nodes(place, node_of);
  return place;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes) {
  const auto describe = [](int t, std::size_t b) {
    return std::string(name_of(static_cast<Kind>(t >> 12))) + " #" + std::to_string(t & 0xFFF) + " with " +
           std::to_string(b) + " bytes";
  };
  return Error({.what = "the ranks disagree about which collective comes next",
                .expected = describe(tag, bytes),
                .found = describe(found_tag, found_bytes),
                .fix = "this is a bug of the program: all ranks must enqueue the same collectives in the "
                       "same order. Report it with the configuration"})
      .what();
}

}  // namespace octet::comm
