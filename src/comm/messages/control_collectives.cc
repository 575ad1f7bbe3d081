// Collectives of the control plane: byte strings of any length.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "messages/rounds.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"

namespace octet::comm {
namespace {

// Long strings are sent in pieces of this size, one at a time. A transport with gigabytes in flight divides
// its bandwidth among all messages, and none completes before the last.
constexpr std::uint64_t control_piece_bytes = std::uint64_t{1} << 24;

// Strings of all ranks up to this size are sent in rounds. The ranks need them soon, and in rounds they send
// the same bytes in fewer messages.
constexpr std::int64_t most_text_in_rounds = std::int64_t{1} << 24;

/// Returns the bytes of the piece at `start` of a string of `length` bytes.
std::size_t piece_at(std::uint64_t start, std::uint64_t length) {
  return std::min(control_piece_bytes, length - start);
}

/// First message of a string. Receivers do not know its length. Numbers and empty strings need no other
/// message.
struct Opening {
  std::uint64_t length = 0;
  std::array<char, 8> first = {};
  bool is_whole() const { return length <= first.size(); }
};
Opening opening_of(const std::string& bytes) {
  Opening opening{.length = bytes.size()};
  if (opening.is_whole()) std::ranges::copy(bytes, opening.first.begin());
  return opening;
}
void take_opening(const Opening& opening, std::string* bytes) {
  bytes->resize(opening.length);
  if (opening.is_whole()) std::copy_n(opening.first.begin(), bytes->size(), bytes->begin());
}

/// The ranks that a rank receives a broadcast from and sends it to. Few ranks: `root` sends to all.
/// Otherwise a binomial tree, so the last rank has the bytes after ceil(log2 P) messages.
struct BroadcastTree {
  BroadcastTree(const Place& place, int root) {
    const int mine = (place.rank - root + place.size) % place.size;  // by distance from the root
    const auto rank_at = [&](int distance) { return (root + distance) % place.size; };
    if (place.size <= most_direct_ranks) {
      if (mine != 0) parent = root;
      for (int d = 1; mine == 0 && d < place.size; ++d) children.push_back(rank_at(d));
      return;
    }
    int below = 1;  // the subtree of this rank has this many ranks, if there are so many
    while (below < place.size && (mine & below) == 0) below *= 2;
    if (mine != 0) parent = rank_at(mine - below);
    // The child with the largest subtree is first.
    for (int d = below / 2; d > 0; d /= 2) {
      if (mine + d < place.size) children.push_back(rank_at(mine + d));
    }
  }
  int parent = -1;  ///< -1: this rank is the root
  std::vector<int> children;
};

}  // namespace

Steps broadcast_steps(Call& call, std::string* bytes, int root) {
  const BroadcastTree tree(call.place(), root);
  const bool receives = tree.parent >= 0;
  Opening opening = opening_of(*bytes);
  Messages in(call), out(call);
  if (receives) {
    in.receive(tree.parent, &opening, sizeof opening);
    while (!in.complete()) co_await pause;
    take_opening(opening, bytes);
  }
  for (const int child : tree.children) out.send(child, &opening, sizeof opening);
  const std::uint64_t length = opening.is_whole() ? 0 : opening.length;
  const auto receive_at = [&](std::uint64_t start) {
    if (receives && start < length) in.receive(tree.parent, bytes->data() + start, piece_at(start, length));
  };
  receive_at(0);
  for (std::uint64_t start = 0; start < length; start += control_piece_bytes) {
    while (!in.complete()) co_await pause;
    receive_at(start + control_piece_bytes);
    while (!out.complete()) co_await pause;
    for (const int child : tree.children) out.send(child, bytes->data() + start, piece_at(start, length));
  }
  while (!out.complete()) co_await pause;
}

namespace {

Steps gather_openings_directly(Call& call, std::vector<Opening>* openings) {
  const Place& place = call.place();
  Messages messages(call);
  for (int d = 1; d < place.size; ++d) {
    const int peer = (place.rank + d) % place.size;
    messages.receive(peer, &(*openings)[index(peer)], sizeof(Opening));
    messages.send(peer, &(*openings)[index(place.rank)], sizeof(Opening));
  }
  while (!messages.complete()) co_await pause;
}

// Every string is in (*all) in its length, and the own string has its bytes.
Steps gather_long_strings_directly(Call& call, std::vector<std::string>* all) {
  const Place& place = call.place();
  std::string& mine = (*all)[index(place.rank)];
  std::size_t longest = 0;
  for (const std::string& some : *all) longest = std::max(longest, some.size());
  Messages messages(call);
  for (std::uint64_t start = 0; start < longest; start += control_piece_bytes) {
    for (int d = 1; d < place.size; ++d) {
      const int peer = (place.rank + d) % place.size;
      std::string& other = (*all)[index(peer)];
      if (start < other.size()) messages.receive(peer, other.data() + start, piece_at(start, other.size()));
      if (start < mine.size()) messages.send(peer, mine.data() + start, piece_at(start, mine.size()));
    }
    while (!messages.complete()) co_await pause;
  }
}

/// Slices of strings in one buffer, by rank.
std::vector<std::int64_t> starts_of(const std::vector<std::string>& strings) {
  std::vector<std::int64_t> starts{0};
  for (const std::string& some : strings) {
    starts.push_back(starts.back() + static_cast<std::int64_t>(some.size()));
  }
  return starts;
}

}  // namespace

Steps all_gather_bytes_steps(Call& call, std::string mine, std::vector<std::string>* all) {
  const Place& place = call.place();
  std::vector<Opening> openings(index(place.size));
  openings[index(place.rank)] = opening_of(mine);
  const bool few = place.size <= most_direct_ranks;
  Steps first = few ? gather_openings_directly(call, &openings)
                    : gather_in_rounds_steps(call, reinterpret_cast<std::byte*>(openings.data()),
                                             equal_slices(place.size, sizeof(Opening)));
  while (!first.resume()) co_await pause;
  all->assign(index(place.size), {});
  for (std::size_t rank = 0; rank < all->size(); ++rank) take_opening(openings[rank], &(*all)[rank]);
  (*all)[index(place.rank)] = std::move(mine);
  if (std::ranges::all_of(openings, &Opening::is_whole)) co_return;
  const std::vector<std::int64_t> starts = starts_of(*all);
  if (!in_rounds(place.size, starts.back(), most_text_in_rounds)) {
    Steps direct = gather_long_strings_directly(call, all);
    while (!direct.resume()) co_await pause;
    co_return;
  }
  std::string text(index(starts.back()), '\0');
  std::ranges::copy((*all)[index(place.rank)], text.begin() + starts[index(place.rank)]);
  Steps rounds = gather_in_rounds_steps(call, reinterpret_cast<std::byte*>(text.data()), starts);
  while (!rounds.resume()) co_await pause;
  for (std::size_t rank = 0; rank < all->size(); ++rank)
    (*all)[rank].assign(text, index(starts[rank]), (*all)[rank].size());
}

}  // namespace octet::comm
