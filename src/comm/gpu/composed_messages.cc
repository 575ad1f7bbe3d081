// Point-to-point messages and all-to-all on streams.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "gpu/composed.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

void Composed::all_to_all(const AllToAllArgs& args) {
  if (args.bytes == 0) return;
  const int me = place_.rank, size = place_.size;
  const auto leaves = [&](int member) {
    return static_cast<const std::byte*>(args.from) + member * args.bytes;
  };
  const auto arrives = [&](int member) { return static_cast<std::byte*>(args.to) + member * args.bytes; };
  device_.copy(stream_, arrives(me), leaves(me), index(args.bytes));
  // Exchanges the part [start, start + count) of every slice. place(sender) is the address of incoming bytes.
  const auto messages = [&](std::int64_t start, std::int64_t count, const auto& place) {
    Messages all;
    for (int d = 1; d < size; ++d) {
      const int to = (me + d) % size, from = (me - d + size) % size;
      all.out.push_back({to, leaves(to) + start, place(me), index(count)});
      all.in.push_back({from, place(from), index(count)});
    }
    return all;
  };
  if (exchange_.reaches(args.to, index(args.bytes) * index(size))) {
    return exchange(stream_, messages(0, args.bytes, arrives), true);
  }
  in_chunks(
      static_cast<std::int64_t>(staging_.part), args.bytes, {},
      [&](const Chunk& c) {
        return messages(c.start, c.count, [&](int member) { return staging_.arriving(c.number, member); });
      },
      [&](const Chunk& c) {
        for (int member = 0; member < size; ++member) {
          if (member == me) continue;
          device_.copy(stream_, arrives(member) + c.start, staging_.arriving(c.number, member),
                       index(c.count));
        }
      });
}

// Incoming bytes pass through staging memory, because only the receiver has the address of their destination.
// Both directions use the partners' chunk numbers, because a partner may have only one direction.
void Composed::pass(const SendArgs* out, const ReceiveArgs* in) {
  const std::int64_t leaving = out == nullptr ? 0 : out->bytes, arriving = in == nullptr ? 0 : in->bytes;
  if (leaving == 0 && arriving == 0) return;
  const auto length = static_cast<std::int64_t>(staging_.part);
  const auto part = [&](const Chunk& c, std::int64_t of) {
    return index(std::clamp<std::int64_t>(of - c.start, 0, length));
  };
  in_chunks(
      length, std::max(leaving, arriving), {},
      [&](const Chunk& c) {
        Messages messages;
        if (const std::size_t bytes = part(c, leaving); bytes > 0) {
          messages.out.push_back({out->to, static_cast<const std::byte*>(out->from) + c.start,
                                  staging_.arriving(c.number, place_.rank), bytes});
        }
        if (const std::size_t bytes = part(c, arriving); bytes > 0) {
          messages.in.push_back({in->from, staging_.arriving(c.number, in->from), bytes});
        }
        return messages;
      },
      [&](const Chunk& c) {
        const std::size_t bytes = part(c, arriving);
        if (bytes == 0) return;
        device_.copy(stream_, static_cast<std::byte*>(in->to) + c.start,
                     staging_.arriving(c.number, in->from), bytes);
      });
}

// Collectives of few bytes over carriers that send eagerly. Each sender has its own place in every receiver's
// memory, so no handshake is needed.

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
                   [&](int member) { return leaves(args, whole, 0, member); });
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
