#include "state_carrier.h"

#include <algorithm>
#include <span>
#include <vector>

#include "segments.h"

namespace octet::store {
namespace {

/// Returns the bytes that a set needs for `elements` elements of a segment, a multiple of ops::kMomentBlock.
std::size_t room_of(const Segment& s, std::int64_t elements) {
  std::size_t bytes = s.exp_avg.bytes(elements) + s.exp_avg_sq.bytes(elements);
  if (s.master_away) bytes += s.master.bytes(elements);
  if (s.exp_avg_scale != nullptr)
    bytes += 2 * static_cast<std::size_t>(Segment::blocks(elements)) * sizeof(float);
  return bytes;
}

/// Returns the start of the array that would have `bytes_before` bytes before `data`.
void* as_whole(void* data, std::size_t bytes_before) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) - bytes_before);
}

/// Returns the parts of the spans inside elements [begin, begin + count).
std::vector<ops::AdamWSpan> within(std::span<const ops::AdamWSpan> spans, std::int64_t begin,
                                   std::int64_t count) {
  std::vector<ops::AdamWSpan> inside;
  for (ops::AdamWSpan span : spans) {
    const std::int64_t from = std::max(span.begin, begin),
                       to = std::min(span.begin + span.count, begin + count);
    if (from >= to) continue;
    span.first += from - span.begin;
    span.begin = from;
    span.count = to - from;
    inside.push_back(span);
  }
  return inside;
}

}  // namespace

/// An array of a piece: its place in host memory and in the set.
struct StateCarrier::Way {
  void* host;
  void* room;
  std::size_t bytes;
};

struct StateCarrier::Piece {
  std::vector<Way> ways;
  ops::AdamWArgs args;
};

StateCarrier::StateCarrier(const Segments& segments, Arena& arena, std::int64_t piece)
    : device_(arena.device()) {
  std::vector<const Segment*> carried;
  std::int64_t blocks = 0;
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (!s.moments_away) continue;
      carried.push_back(&s);
      blocks = std::max(blocks, Segment::blocks(s.state_count));
    }
  }
  elements_ = std::min(piece, blocks * ops::kMomentBlock);
  if (elements_ == 0) return;
  std::size_t room = 0;
  for (const Segment* s : carried) room = std::max(room, room_of(*s, elements_));
  for (Set& set : sets_) {
    set.room = arena.reserve_as<std::byte>("state under way", room);
    set.brought = device_.make_event();
    set.updated = device_.make_event();
    set.taken = device_.make_event();
  }
  in_ = device_.make_stream({.name = "state in", .mode = StreamOptions::Mode::worker, .background = true});
  out_ = device_.make_stream({.name = "state out", .mode = StreamOptions::Mode::worker, .background = true});
  before_ = device_.make_event();
}

StateCarrier::~StateCarrier() = default;

void StateCarrier::carry(const Piece& piece, int set, Stream& stream) {
  Set& own = sets_[static_cast<std::size_t>(set)];
  in_->wait(*own.taken);
  for (const Way& way : piece.ways) device_.copy_to_device(*in_, way.room, way.host, way.bytes);
  in_->record(*own.brought);
  stream.wait(*own.brought);
  ops::adamw(stream, piece.args);
  stream.record(*own.updated);
  out_->wait(*own.updated);
  for (const Way& way : piece.ways) device_.copy_to_host(*out_, way.host, way.room, way.bytes);
  out_->record(*own.taken);
}

void StateCarrier::update(const ops::AdamWArgs& args, std::int64_t count, bool master_too, Stream& stream) {
  stream.record(*before_);
  in_->wait(*before_);
  for (std::int64_t begin = 0; begin < count; begin += elements_) {
    const std::int64_t here = std::min(elements_, count - begin);
    const std::vector<ops::AdamWSpan> spans = within(args.spans, begin, here);
    if (spans.empty()) continue;  // padding is not updated
    Piece piece{.ways = {}, .args = args};
    piece.args.spans = spans;
    std::byte* room = sets_[static_cast<std::size_t>(next_)].room;
    // Adds an array with `each` bytes per `per` elements, and lets `data` point to its place in the set.
    const auto carry_array = [&](auto*& data, std::size_t each, std::int64_t per) {
      const std::size_t before = static_cast<std::size_t>(begin / per) * each;
      const std::size_t bytes = static_cast<std::size_t>((here + per - 1) / per) * each;
      piece.ways.push_back({reinterpret_cast<std::byte*>(data) + before, room, bytes});
      data = static_cast<std::remove_reference_t<decltype(data)>>(as_whole(room, before));
      room += static_cast<std::size_t>((elements_ + per - 1) / per) * each;
    };
    if (master_too) carry_array(piece.args.master, size_of(args.master_dtype), 1);
    carry_array(piece.args.exp_avg, size_of(args.moment_dtype), 1);
    carry_array(piece.args.exp_avg_sq, size_of(args.moment_dtype), 1);
    if (args.exp_avg_scale != nullptr) {
      carry_array(piece.args.exp_avg_scale, sizeof(float), ops::kMomentBlock);
      carry_array(piece.args.exp_avg_sq_scale, sizeof(float), ops::kMomentBlock);
    }
    carry(piece, next_, stream);
    next_ = (next_ + 1) % static_cast<int>(sets_.size());
  }
  for (const Set& set : sets_) stream.wait(*set.taken);
}

}  // namespace octet::store
