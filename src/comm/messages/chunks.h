// Pipelined collectives: a slice is split into chunks, and messages of later chunks are in flight while one
// is summed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "messages/messages.h"
#include "messages/steps.h"

namespace octet::comm {

/// Number of chunks in flight. A long message waits for a handshake from its receiver, which queues after
/// other messages on a slow link. With two chunks the link is sometimes idle, with four it is not.
inline constexpr int staging_sets = 4;

/// Messages of the chunks in flight; [i] belongs to chunk i.
class MessageSets {
 public:
  explicit MessageSets(Call& call) : sets_{Messages(call), Messages(call), Messages(call), Messages(call)} {}
  Messages& operator[](std::int64_t chunk) { return sets_[static_cast<std::size_t>(chunk % staging_sets)]; }

 private:
  std::array<Messages, staging_sets> sets_;
};

/// Elements [start, start + count) of a slice, and the staging set that they use.
struct Chunk {
  std::int64_t start = 0;
  std::int64_t count = 0;
  int set = 0;
};

/// Processes `count` elements in chunks of `length`. post(messages, chunk) starts a chunk's messages.
/// sum(chunk) is called in order, when the messages are complete. Objects that both functions refer to must
/// outlive the coroutine.
template <typename Post, typename Sum>
Steps in_chunks(Call& call, std::int64_t length, std::int64_t count, Post post, Sum sum) {
  const auto chunk_at = [&](std::int64_t index) {
    const std::int64_t start = index * length;
    return Chunk{start, std::min(length, count - start), static_cast<int>(index % staging_sets)};
  };
  const std::int64_t chunks = (count + length - 1) / length;
  MessageSets messages(call);
  for (std::int64_t c = 0, next = 0; c < chunks; ++c) {
    for (; next < std::min(c + staging_sets, chunks); ++next) post(messages[next], chunk_at(next));
    while (!messages[c].complete()) co_await pause;
    sum(chunk_at(c));
  }
}

}  // namespace octet::comm
