// What collectives share that cut a slice into chunks, several of which are under way while one is summed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "messages.h"
#include "steps.h"

namespace octet::comm {

/// Chunks under way at a time. A long message waits for a word from its receiver before it travels, and over
/// a slow link that word waits behind other messages: with two there are gaps, with four the link is never
/// idle.
inline constexpr int staging_sets = 4;

/// Messages of the chunks under way: of chunk i, [i].
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

/// Walks over `count` elements in chunks of `length`: post(messages, chunk) begins a chunk's messages, and
/// sum(chunk) is called in order, when they are through. What both hold lives as long as the coroutine.
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
