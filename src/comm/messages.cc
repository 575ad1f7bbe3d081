#include "messages.h"

#include <algorithm>

namespace octet::comm {

void Messages::send(int peer, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  call_.bytes_sent += static_cast<std::int64_t>(bytes);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, call_.transport->max_message());
    tickets_.push_back(call_.transport->isend(call_.queue, peer, call_.tag, at, piece));
    at += piece;
    bytes -= piece;
  }
}

void Messages::receive(int peer, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, call_.transport->max_message());
    tickets_.push_back(call_.transport->irecv(call_.queue, peer, call_.tag, at, piece));
    at += piece;
    bytes -= piece;
  }
}

bool Messages::complete() {
  // One look at the first that is missing makes the transport progress on all of them.
  while (done_ < tickets_.size()) {
    if (!call_.transport->test(tickets_[done_])) return false;
    ++done_;
    ++call_.completed;
  }
  tickets_.clear();
  done_ = 0;
  return true;
}

}  // namespace octet::comm
