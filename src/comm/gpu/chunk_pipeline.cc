#include "gpu/chunk_pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/index.h"

namespace octet::comm {

ChunkPipeline::ChunkPipeline(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access,
                             const Place& place)
    : stream_(stream),
      exchange_(exchange),
      access_(access),
      place_(place),
      beside_(device.make_stream({.name = stream.name() + " carry", .mode = StreamOptions::Mode::worker})) {
  for (auto* events : {&prepared_, &carried_}) {
    for (auto& event : *events) event = device.make_event();
  }
}

ChunkPipeline::Sent ChunkPipeline::take_sent() {
  return std::exchange(sent_, {});
}

void ChunkPipeline::write(std::optional<CounterStep>& mark) {
  if (mark) access_.steps(stream_, {&*mark, 1});
  mark.reset();
}

void ChunkPipeline::end() {
  write(marks_.before);
  write(marks_.after);
}

void ChunkPipeline::begin_elsewhere() {
  write(marks_.before);
}

void ChunkPipeline::count_slices(std::int64_t bytes) {
  sent_.bytes += bytes * (place_.size - 1);
  sent_.between_nodes += bytes * (place_.size - place_.local_size);
}

void ChunkPipeline::count(std::span<const Outgoing> out) {
  for (const Outgoing& piece : out) {
    sent_.bytes += static_cast<std::int64_t>(piece.bytes);
    if (place_.node_of[index(piece.peer)] != place_.node) {
      sent_.between_nodes += static_cast<std::int64_t>(piece.bytes);
    }
  }
}

void ChunkPipeline::exchange(Stream& stream, const PeerMessages& messages, bool last) {
  count(messages.out);
  if (&stream != &stream_ || !exchange_.takes_marks()) {
    write(marks_.before);
    exchange_.exchange(stream, messages.out, messages.in);
    return;
  }
  Marks marks{.before = std::exchange(marks_.before, std::nullopt), .after = std::nullopt};
  if (last) std::swap(marks.after, marks_.after);
  exchange_.exchange_marked(stream, messages.out, messages.in, marks);
}

ChunkPipeline::Chunk ChunkPipeline::chunk_at(std::int64_t number, std::int64_t length, std::int64_t count) {
  return {.number = number, .start = number * length, .count = std::min(length, count - number * length)};
}

// The queue's stream encodes a chunk and sums the previous one while the second stream carries. A set of
// staging memory is free after its chunk is finished. The order of the queue's stream ensures that.
void ChunkPipeline::in_chunks_carried(std::int64_t length, std::int64_t count, const Act& prepare,
                                      const Carry& carry, const Act& finish) {
  const std::int64_t chunks = chunks_of(length, count);
  const auto at = [&](std::int64_t c) { return chunk_at(c, length, count); };
  if (chunks == 1) {  // nothing to overlap
    if (prepare) prepare(at(0));
    carry(stream_, at(0));
    finish(at(0));
    return;
  }
  write(marks_.before);
  for (std::int64_t c = 0; c <= chunks; ++c) {
    if (c < chunks) {
      Event& prepared = *prepared_[index(c % DeviceStaging::sets)];
      if (prepare) prepare(at(c));
      stream_.record(prepared);
      beside_->wait(prepared);
      carry(*beside_, at(c));
      beside_->record(*carried_[index(c % DeviceStaging::sets)]);
    }
    if (c == 0) continue;
    stream_.wait(*carried_[index((c - 1) % DeviceStaging::sets)]);
    finish(at(c - 1));
  }
}

// If the exchange works in steps, only sending runs on the second stream. The queue's stream waits for
// incoming bytes itself. A chunk is therefore sent as soon as the previous chunk is sent, even if that
// chunk's incoming bytes have not arrived.
void ChunkPipeline::in_chunks(std::int64_t length, std::int64_t count, const Act& prepare,
                              const MessagesOf& messages, const Act& finish) {
  const std::int64_t chunks = chunks_of(length, count);
  if (chunks == 1 || !exchange_.in_steps()) {
    return in_chunks_carried(
        length, count, prepare, [&](Stream& stream, const Chunk& c) { exchange(stream, messages(c)); },
        finish);
  }
  write(marks_.before);
  std::array<PeerMessages, DeviceStaging::sets> under_way;
  for (std::int64_t c = 0; c <= chunks; ++c) {
    const std::size_t set = index(c % DeviceStaging::sets);
    if (c < chunks) {
      if (prepare) {
        if (c >= DeviceStaging::sets) stream_.wait(*carried_[set]);  // the set is free
        prepare(chunk_at(c, length, count));
      }
      under_way[set] = messages(chunk_at(c, length, count));
      exchange_.offer(stream_, under_way[set].in);
      if (c == 0 || prepare) {
        stream_.record(*prepared_[set]);
        beside_->wait(*prepared_[set]);
      }
      this->count(under_way[set].out);
      exchange_.send(*beside_, under_way[set].out);
      beside_->record(*carried_[set]);
    }
    if (c == 0) continue;
    exchange_.await(stream_, under_way[index((c - 1) % DeviceStaging::sets)].in);
    finish(chunk_at(c - 1, length, count));
  }
  // Later work may overwrite the send buffers.
  stream_.wait(*carried_[index((chunks - 1) % DeviceStaging::sets)]);
}

void ChunkPipeline::exchange_eagerly(std::size_t bytes, const std::function<const void*(int)>& from,
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

void ChunkPipeline::take_eagerly(std::span<const Piece> pieces) {
  exchange_.take_eagerly(stream_, pieces, std::exchange(marks_.after, std::nullopt));
}

}  // namespace octet::comm
