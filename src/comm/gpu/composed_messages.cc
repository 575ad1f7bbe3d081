// Point-to-point messages and all-to-all on streams.
#include <algorithm>

#include "gpu/composed.h"

#include "octet/base/index.h"

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

}  // namespace octet::comm
