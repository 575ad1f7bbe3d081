// Collectives of few bytes over carriers that send eagerly. Each sender has its own place in every receiver's
// memory, so no handshake is needed.
#include <array>
#include <span>
#include <utility>

#include "gpu/composed.h"
#include "messages/collectives.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

void Composed::exchange_eagerly(std::size_t bytes, const std::function<const void*(int)>& from,
                                bool marks_end) {
  std::array<Outgoing, PeerAccess::most_moved> messages;
  for (int d = 1; d < place_.size; ++d) {
    const int to = (place_.rank + d) % place_.size;
    messages[index(d - 1)] = {.peer = to, .from = from(to), .bytes = bytes};
  }
  const std::span<const Outgoing> out(messages.data(), index(place_.size - 1));
  count(out);
  Marks marks{.before = std::exchange(marks_.before, std::nullopt), .after = std::nullopt};
  if (marks_end) std::swap(marks.after, marks_.after);
  exchange_.send_eagerly(stream_, out, marks);
}

void Composed::reduce_eagerly(const ReduceScatterArgs& args) {
  const Chunk whole{.count = args.count};
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype)) encode(args, whole);
  exchange_eagerly(ops::wire_bytes(args.wire, args.count),
                   [&](int member) { return leaves(args, whole, member); });
  sum(args, whole, [&](int member) { return exchange_.came_eagerly(member); });
}

void Composed::gather_eagerly(const AllGatherArgs& args) {
  const std::size_t bytes = index(args.bytes);
  std::byte* const buffer = static_cast<std::byte*>(args.buffer);
  exchange_eagerly(
      bytes, [&](int) { return buffer + index(place_.rank) * bytes; }, /*marks_end=*/false);
  std::array<Piece, PeerAccess::most_moved> pieces;
  std::size_t others = 0;
  for (int member = 0; member < place_.size; ++member) {
    if (member == place_.rank) continue;
    pieces[others++] = {exchange_.came_eagerly(member), buffer + index(member) * bytes, bytes};
  }
  exchange_.take_eagerly(stream_, {pieces.data(), others}, std::exchange(marks_.after, std::nullopt));
}

void Composed::all_reduce_eagerly(ops::Combine how, void* values, std::int64_t count) {
  exchange_eagerly(index(count) * ops::element_bytes(how), [&](int) { return values; });
  std::vector<const void*> parts;
  for (int member = 0; member < place_.size; ++member) {
    parts.push_back(member == place_.rank ? values : exchange_.came_eagerly(member));
  }
  ops::combine_parts(stream_, {.how = how, .parts = parts, .to = values, .count = count});
}

}  // namespace octet::comm
