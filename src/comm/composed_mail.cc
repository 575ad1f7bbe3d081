// Collectives of a few bytes over carriers that have mail: what each rank sends is there before anybody asks.
#include <utility>

#include "collectives.h"
#include "composed.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

bool Composed::mails(std::size_t bytes) const {
  return bytes <= exchange_.mail_room();
}

void Composed::mail(std::size_t bytes, const std::function<const void*(int)>& from) {
  std::vector<Outgoing> out;
  for (int d = 1; d < place_.size; ++d) {
    const int to = (place_.rank + d) % place_.size;
    out.push_back({.peer = to, .from = from(to), .bytes = bytes});
  }
  count(out);
  exchange_.mail(stream_, out, std::exchange(marks_.before, std::nullopt));
}

// As in chunks, with the only one.
void Composed::reduce_by_mail(const ReduceScatterArgs& args) {
  const bool lies = ops::travels_as_it_lies(args.wire, args.from_dtype);
  const auto leaves = [&](int member) -> const void* {
    return lies ? read_at(args, member * args.count) : staging_.leaving(0, member);
  };
  for (int member = 0; !lies && member < place_.size; ++member) {
    ops::encode_values(stream_, {.wire = args.wire,
                                 .from = read_at(args, member * args.count),
                                 .dtype = args.from_dtype,
                                 .count = args.count,
                                 .to = staging_.leaving(0, member),
                                 .residual = residual_at(args, member * args.count)});
  }
  mail(ops::wire_bytes(args.wire, args.count), leaves);
  std::vector<const void*> parts;
  for (int member = 0; member < place_.size; ++member) {
    parts.push_back(member == place_.rank ? leaves(member) : exchange_.mailed(member));
  }
  ops::sum_parts(stream_, {.wire = args.wire,
                           .parts = parts,
                           .to = args.to,
                           .to_dtype = args.to_dtype,
                           .count = args.count,
                           .accumulate = args.accumulate});
}

void Composed::gather_by_mail(std::byte* buffer, std::size_t bytes) {
  mail(bytes, [&](int) { return buffer + index(place_.rank) * bytes; });
  std::vector<Piece> pieces;
  for (int member = 0; member < place_.size; ++member) {
    if (member == place_.rank) continue;
    pieces.push_back({exchange_.mailed(member), buffer + index(member) * bytes, bytes});
  }
  exchange_.unpack(stream_, pieces, std::exchange(marks_.after, std::nullopt));
}

void Composed::all_reduce_by_mail(ops::Combine how, void* values, std::size_t bytes, std::int64_t count) {
  mail(bytes, [&](int) { return values; });
  std::vector<const void*> parts;
  for (int member = 0; member < place_.size; ++member) {
    parts.push_back(member == place_.rank ? values : exchange_.mailed(member));
  }
  ops::combine_parts(stream_, {.how = how, .parts = parts, .to = values, .count = count});
}

}  // namespace octet::comm
