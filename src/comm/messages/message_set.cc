#include "messages/message_set.h"

#include <algorithm>
#include <set>

#include "octet/base/files.h"

namespace octet::comm {
namespace {

std::uint64_t hash_of(const void* data, std::size_t bytes) {
  return hash64({static_cast<const char*>(data), bytes});
}

}  // namespace

void Messages::send(int peer, const void* data, std::size_t bytes) {
  call_.bytes_sent += static_cast<std::int64_t>(bytes);
  const Place& place = call_.place();
  if (place.node_of[static_cast<std::size_t>(peer)] != place.node) {
    call_.bytes_between_nodes += static_cast<std::int64_t>(bytes);
  }
  post(peer, data, nullptr, bytes);
  if (!call_.sealed || bytes == 0) return;
  const Seal& seal = seals_.emplace_back(Seal{.hash = hash_of(data, bytes), .peer = peer});
  post(peer, &seal.hash, nullptr, sizeof seal.hash);
}

void Messages::receive(int peer, void* data, std::size_t bytes) {
  post(peer, nullptr, data, bytes);
  if (!call_.sealed || bytes == 0) return;
  Seal& seal = seals_.emplace_back(Seal{.peer = peer, .data = data, .bytes = bytes});
  post(peer, nullptr, &seal.hash, sizeof seal.hash);
}

// One of `out` and `in` is null.
void Messages::post(int peer, const void* out, void* in, std::size_t bytes) {
  const int lane = call_.lane->id;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t piece = std::min(bytes - at, call_.transport->max_message());
    const int ticket =
        in == nullptr
            ? call_.transport->isend(lane, peer, call_.tag, static_cast<const std::byte*>(out) + at, piece)
            : call_.transport->irecv(lane, peer, call_.tag, static_cast<std::byte*>(in) + at, piece);
    messages_.push_back({ticket, peer, in != nullptr});
    at += piece;
  }
}

void Messages::compare() {
  for (const Seal& seal : seals_) {
    if (seal.data == nullptr) continue;
    call_.notes->arrived(seal.data, seal.bytes);
    if (hash_of(seal.data, seal.bytes) != seal.hash)
      call_.notes->note({.from = seal.peer, .to = call_.place().rank, .name = call_.name});
  }
  seals_.clear();
}

bool Messages::test(Message& message) {
  if (message.through) return true;
  message.through = call_.transport->test(message.ticket);
  if (message.through) ++call_.completed;
  return message.through;
}

bool Messages::complete() {
  // One look at the first that is missing makes the transport progress on all of them.
  while (done_ < messages_.size()) {
    if (!test(messages_[done_])) return false;
    ++done_;
  }
  messages_.clear();
  done_ = 0;
  compare();
  return true;
}

std::vector<int> Call::missing_ranks() {
  std::set<int> silent, deaf;
  for (Messages* some : open) {
    for (Messages::Message& message : some->messages_) {
      if (!some->test(message)) (message.incoming ? silent : deaf).insert(message.peer);
    }
  }
  std::vector<int> missing;
  for (const int peer : silent.empty() ? deaf : silent) {
    missing.push_back(lane->ranks[static_cast<std::size_t>(peer)]);
  }
  return missing;
}

}  // namespace octet::comm
