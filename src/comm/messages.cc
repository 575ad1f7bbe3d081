#include "messages.h"

#include <algorithm>
#include <set>

namespace octet::comm {

void Messages::send(int peer, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  call_.bytes_sent += static_cast<std::int64_t>(bytes);
  const Place& place = call_.place();
  if (place.node_of[static_cast<std::size_t>(peer)] != place.node) {
    call_.bytes_between_nodes += static_cast<std::int64_t>(bytes);
  }
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, call_.transport->max_message());
    messages_.push_back({call_.transport->isend(call_.lane->id, peer, call_.tag, at, piece), peer, false});
    at += piece;
    bytes -= piece;
  }
}

void Messages::receive(int peer, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, call_.transport->max_message());
    messages_.push_back({call_.transport->irecv(call_.lane->id, peer, call_.tag, at, piece), peer, true});
    at += piece;
    bytes -= piece;
  }
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
