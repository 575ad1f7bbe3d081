// Messages between two ranks, and all-to-all.
#include <algorithm>
#include <cstring>

#include "messages/chunks.h"
#include "messages/collectives.h"

namespace octet::comm {
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
