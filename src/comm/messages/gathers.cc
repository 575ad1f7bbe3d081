// Gathers, messages between two ranks and all-to-all, over a transport.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "messages/rounds.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

// Slices that are forwarded inside other nodes are sent in pieces of this size, so both transfers overlap.
constexpr std::int64_t handed_on_bytes = std::int64_t{1} << 20;
// Other slices use larger pieces, with some in flight at a time. A transport with gigabytes in flight serves
// all of them at once, and no piece completes early.
constexpr std::int64_t direct_bytes = std::int64_t{1} << 22;

// Sends every rank's part of a piece to all ranks: to the ranks of its node and, once per other node, to a
// delegate, which forwards it. All ranks post in the same order, so messages between two ranks match.
class HierarchicalGather {
 public:
  HierarchicalGather(Call& call, const Hierarchy& hierarchy)
      : h_(hierarchy),
        me_(call.place().rank),
        node_(h_.node_of[index(me_)]),
        node_ranks_(h_.node_ranks(me_)),
        first_(call),
        second_(call) {
    for (const int rank : h_.charges(me_)) {
      if (rank != me_) charges_.push_back(rank);
    }
  }

  bool through(std::int64_t piece, bool handed_on) {
    return (handed_on ? second_ : first_)[piece].complete();
  }

  /// part(rank) is both source and destination of a rank's part of this piece.
  template <typename Part>
  void post_first(std::int64_t piece, std::size_t bytes, Part part) {
    Messages& messages = first_[piece];
    for_node_ranks([&](int peer) { messages.receive(peer, part(peer), bytes); });
    for (const int rank : charges_) messages.receive(rank, part(rank), bytes);
    for_node_ranks([&](int peer) { messages.send(peer, part(me_), bytes); });
    for (int d = 1; d < static_cast<int>(h_.nodes.size()); ++d) {
      const int node = (node_ + d) % static_cast<int>(h_.nodes.size());
      messages.send(h_.delegate(node, me_), part(me_), bytes);
    }
  }

  template <typename Part>
  void post_second(std::int64_t piece, std::size_t bytes, Part part) {
    Messages& messages = second_[piece];
    for_node_ranks([&](int peer) {
      for (const int rank : h_.charges(peer)) {
        if (rank != peer) messages.receive(peer, part(rank), bytes);
      }
    });
    for_node_ranks([&](int peer) {
      for (const int rank : charges_) messages.send(peer, part(rank), bytes);
    });
  }

 private:
  // Starts with the next rank, so the ranks do not all send to the same rank at once.
  template <typename Do>
  void for_node_ranks(Do&& act) const {
    const auto mine = std::ranges::find(node_ranks_, me_) - node_ranks_.begin();
    const auto n = static_cast<std::ptrdiff_t>(node_ranks_.size());
    for (std::ptrdiff_t d = 1; d < n; ++d) act(node_ranks_[index((mine + d) % n)]);
  }

  const Hierarchy& h_;
  int me_;
  int node_;
  const std::vector<int>& node_ranks_;
  std::vector<int> charges_;  // on other nodes
  MessageSets first_;
  MessageSets second_;
};

}  // namespace

Steps all_gather_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args) {
  const int size = call.place().size;
  if (slices_in_rounds(size, args.bytes * size)) {
    Steps small =
        gather_in_rounds_steps(call, static_cast<std::byte*>(args.buffer), equal_slices(size, args.bytes));
    while (!small.resume()) co_await pause;
    co_return;
  }
  if (gathers_whole_nodes(hierarchy, args.bytes)) {
    Steps whole = gather_whole_nodes_steps(call, hierarchy, args);
    while (!whole.resume()) co_await pause;
    co_return;
  }
  HierarchicalGather gather(call, hierarchy);
  const std::int64_t piece = hierarchy.nodes.size() == 1 ? direct_bytes : handed_on_bytes;
  const std::int64_t pieces = (args.bytes + piece - 1) / piece;
  const auto bytes = [&](std::int64_t p) {
    return static_cast<std::size_t>(std::min(piece, args.bytes - p * piece));
  };
  const auto part = [&](std::int64_t p) {
    return [&, p](int rank) { return static_cast<std::byte*>(args.buffer) + rank * args.bytes + p * piece; };
  };
  for (std::int64_t p = 0, next = 0; p < pieces; ++p) {
    for (; next < std::min(p + staging_sets, pieces); ++next) {
      gather.post_first(next, bytes(next), part(next));
    }
    while (!gather.through(p, false)) co_await pause;
    gather.post_second(p, bytes(p), part(p));
    while (!gather.through(p, true)) co_await pause;
  }
}

Steps all_gather_values_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                              AllGatherValuesArgs args) {
  const Place& place = call.place();
  if (place.size == 1) co_return;
  if (args.wire == Wire::f32 || (args.wire == Wire::bf16 && args.dtype == DType::bf16)) {
    Steps plain = all_gather_steps(
        call, hierarchy,
        {.buffer = args.buffer, .bytes = args.count * static_cast<std::int64_t>(size_of(args.dtype))});
    while (!plain.resume()) co_await pause;
    co_return;
  }
  HierarchicalGather gather(call, hierarchy);
  const std::int64_t pieces = (args.count + staging.chunk - 1) / staging.chunk;
  const auto length = [&](std::int64_t p) { return std::min(staging.chunk, args.count - p * staging.chunk); };
  const auto bytes = [&](std::int64_t p) { return ops::wire_bytes(args.wire, length(p)); };
  const auto part = [&](std::int64_t p) {
    return [&, p](int rank) {
      const int set = static_cast<int>(p % staging_sets);
      return rank == place.rank ? staging.leaving(set, rank) : staging.arriving(set, rank);
    };
  };
  const auto values = [&](std::int64_t p, int rank) {
    const auto element = static_cast<std::int64_t>(size_of(args.dtype));
    return static_cast<std::byte*>(args.buffer) + (rank * args.count + p * staging.chunk) * element;
  };
  const auto begin = [&](std::int64_t p) {
    // Rounding errors are added to the residual of the own slice, which holds the errors of earlier
    // reductions. The next reduction corrects both.
    ops::encode_values({.wire = args.wire,
                        .from = values(p, place.rank),
                        .dtype = args.dtype,
                        .count = length(p),
                        .to = part(p)(place.rank),
                        .residual = args.residual == nullptr ? nullptr : args.residual + p * staging.chunk,
                        .adds_residual = false});
    gather.post_first(p, bytes(p), part(p));
  };
  for (std::int64_t p = 0, next = 0; p < pieces; ++p) {
    for (; next < std::min(p + staging_sets, pieces); ++next) begin(next);
    while (!gather.through(p, false)) co_await pause;
    gather.post_second(p, bytes(p), part(p));
    while (!gather.through(p, true)) co_await pause;
    for (int r = 0; r < place.size; ++r) {
      ops::decode_values({.wire = args.wire,
                          .part = part(p)(r),
                          .count = length(p),
                          .dtype = args.dtype,
                          .to = values(p, r)});
    }
  }
}

// Messages between two ranks, and all-to-all.

namespace {

// Long messages are split into pieces, and only some pieces are in flight. A transport with gigabytes in
// flight divides its bandwidth among all messages, and none completes before the last.
constexpr std::int64_t piece_bytes = std::int64_t{1} << 22;

std::int64_t pieces_of(std::int64_t bytes) {
  return (bytes + piece_bytes - 1) / piece_bytes;
}
std::size_t length_of(std::int64_t piece, std::int64_t bytes) {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(bytes - piece * piece_bytes, 0, piece_bytes));
}

// post(messages, piece) starts the messages of a piece.
template <typename Post>
Steps in_pieces(Call& call, std::int64_t pieces, Post post) {
  MessageSets messages(call);
  for (std::int64_t p = 0, next = 0; p < pieces; ++p) {
    for (; next < std::min(p + staging_sets, pieces); ++next) post(messages[next], next);
    while (!messages[p].complete()) co_await pause;
  }
}

}  // namespace

Steps all_to_all_steps(Call& call, AllToAllArgs args) {
  return in_pieces(call, pieces_of(args.bytes), [&call, args](Messages& messages, std::int64_t piece) {
    const Place& place = call.place();
    const std::size_t bytes = length_of(piece, args.bytes);
    const auto at = [&](auto* memory, int rank) { return memory + rank * args.bytes + piece * piece_bytes; };
    auto* to = static_cast<std::byte*>(args.to);
    const auto* from = static_cast<const std::byte*>(args.from);
    // Each rank starts with its right neighbour, so the ranks never all send to the same rank at once.
    for (int d = 1; d < place.size; ++d) {
      const int peer = (place.rank - d + place.size) % place.size;
      messages.receive(peer, at(to, peer), bytes);
    }
    for (int d = 1; d < place.size; ++d) {
      const int peer = (place.rank + d) % place.size;
      messages.send(peer, at(from, peer), bytes);
    }
    std::memcpy(at(to, place.rank), at(from, place.rank), bytes);
  });
}

Steps pass_steps(Call& call, SendArgs out, ReceiveArgs in) {
  const std::int64_t pieces = std::max(pieces_of(out.bytes), pieces_of(in.bytes));
  return in_pieces(call, pieces, [out, in](Messages& messages, std::int64_t piece) {
    const std::int64_t start = piece * piece_bytes;
    messages.receive(in.from, static_cast<std::byte*>(in.to) + start, length_of(piece, in.bytes));
    messages.send(out.to, static_cast<const std::byte*>(out.from) + start, length_of(piece, out.bytes));
  });
}

}  // namespace octet::comm
