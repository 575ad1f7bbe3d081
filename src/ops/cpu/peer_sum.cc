#include "octet/ops/peer_sum.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "peer_sum_rule.h"

namespace octet::ops::cpu {

void peer_sum(const PeerSumArgs& args);

namespace {

// A waiting rank yields its core at once, because others may share it. After many yields it sleeps between
// polls.
constexpr int kYieldsBeforeSleep = 200;

std::uint32_t word_of(const void* values, std::size_t i) {
  std::uint32_t word = 0;
  std::memcpy(&word, static_cast<const std::byte*>(values) + i * sizeof word, sizeof word);
  return word;
}

std::uint64_t* marked_words(const PeerSumArgs& args, std::uint64_t n, int of, int member) {
  const auto ranks = static_cast<int>(args.places.size());
  return reinterpret_cast<std::uint64_t*>(args.places[static_cast<std::size_t>(of)] +
                                          place_of(n, ranks, member, args.room));
}

std::uint32_t await(const PeerSumArgs& args, std::uint64_t& place, std::uint32_t mark) {
  const std::atomic_ref<std::uint64_t> marked(place);
  for (int looks = 0;; ++looks) {
    const std::uint64_t now = marked.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(now >> 32) == mark) return static_cast<std::uint32_t>(now);
    if (looks < kYieldsBeforeSleep) {
      sched_yield();
      continue;
    }
    if (args.alive) args.alive();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

float low_half(std::uint32_t word) {
  return from_bf16(static_cast<std::uint16_t>(word));
}
float high_half(std::uint32_t word) {
  return from_bf16(static_cast<std::uint16_t>(word >> 16));
}

/// The values of a word as fp32: one f32 value or two bf16 values.
struct Values {
  float first = 0, second = 0;
};
Values values_of(std::uint32_t word, DType dtype) {
  if (dtype == DType::bf16) return {low_half(word), high_half(word)};
  return {std::bit_cast<float>(word), 0};
}
std::uint32_t rounded(const Values& values, DType dtype) {
  if (dtype == DType::bf16)
    return to_bf16(values.first) | static_cast<std::uint32_t>(to_bf16(values.second)) << 16;
  return std::bit_cast<std::uint32_t>(values.first);
}
Values plus(const Values& a, const Values& b) {
  return {a.first + b.first, a.second + b.second};
}

}  // namespace

void peer_sum(const PeerSumArgs& args) {
  const auto ranks = static_cast<int>(args.places.size());
  const std::uint64_t n = *args.begun / kPeerSumBlocks;
  *args.begun += kPeerSumBlocks;
  const std::uint32_t mark = mark_of(n);
  const std::size_t words =
      static_cast<std::size_t>(args.count) * size_of(args.dtype) / sizeof(std::uint32_t);
  if (args.alive) args.alive();  // throws if a peer has failed: the memory of its places may be gone
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == args.rank) continue;
    std::uint64_t* const there = marked_words(args, n, peer, args.rank);
    for (std::size_t i = 0; i < words; ++i) {
      const std::uint64_t marked = word_of(args.values, i) | static_cast<std::uint64_t>(mark) << 32;
      std::atomic_ref<std::uint64_t>(there[i]).store(marked, std::memory_order_release);
    }
  }
  for (std::size_t i = 0; i < words; ++i) {
    Values sum;
    for (int member = 0; member < ranks; ++member) {
      const std::uint32_t word = member == args.rank
                                     ? word_of(args.values, i)
                                     : await(args, marked_words(args, n, args.rank, member)[i], mark);
      const Values part = values_of(word, args.dtype);
      sum = member == 0 ? part : plus(sum, part);
    }
    std::uint32_t word = rounded(sum, args.dtype);
    if (args.addend != nullptr)
      word = rounded(plus(values_of(word_of(args.addend, i), args.dtype), values_of(word, args.dtype)),
                     args.dtype);
    std::memcpy(static_cast<std::byte*>(args.to) + i * sizeof word, &word, sizeof word);
  }
}

}  // namespace octet::ops::cpu
