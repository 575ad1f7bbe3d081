#include "job/control.h"

#include <algorithm>
#include <cstdint>

namespace octet::comm {
namespace {

// Long strings are sent in pieces of this size, one at a time. A transport with gigabytes in flight divides
// its bandwidth among all messages, and none completes before the last.
constexpr std::uint64_t control_piece_bytes = std::uint64_t{1} << 24;

/// Returns the bytes of the piece at `start` of a string of `length` bytes.
std::size_t piece_at(std::uint64_t start, std::uint64_t length) {
  return std::min(control_piece_bytes, length - start);
}

// Receives a length and then the bytes, because the receiver does not know the length.
Steps receive_string(Call& call, int peer, std::string* bytes) {
  std::uint64_t length = 0;
  Messages messages(call);
  messages.receive(peer, &length, sizeof length);
  while (!messages.complete()) co_await pause;
  bytes->resize(length);
  for (std::uint64_t start = 0; start < length; start += control_piece_bytes) {
    messages.receive(peer, bytes->data() + start, piece_at(start, length));
    while (!messages.complete()) co_await pause;
  }
}

}  // namespace

Steps broadcast_steps(Call& call, std::string* bytes, int root) {
  const Place& place = call.place();
  if (place.rank != root) {
    Steps receive = receive_string(call, root, bytes);
    while (!receive.resume()) co_await pause;
    co_return;
  }
  const std::uint64_t length = bytes->size();
  Messages messages(call);
  for (int d = 1; d < place.size; ++d) messages.send((root + d) % place.size, &length, sizeof length);
  while (!messages.complete()) co_await pause;
  for (std::uint64_t start = 0; start < length; start += control_piece_bytes) {
    for (int d = 1; d < place.size; ++d) {
      messages.send((root + d) % place.size, bytes->data() + start, piece_at(start, length));
    }
    while (!messages.complete()) co_await pause;
  }
}

Steps all_gather_bytes_steps(Call& call, std::string mine, std::vector<std::string>* all) {
  const Place& place = call.place();
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(place.size), length);
  const auto at = [&](int d) { return static_cast<std::size_t>((place.rank + d) % place.size); };
  Messages messages(call);
  for (int d = 1; d < place.size; ++d) {
    messages.receive(static_cast<int>(at(d)), &lengths[at(d)], sizeof length);
    messages.send(static_cast<int>(at(d)), &length, sizeof length);
  }
  while (!messages.complete()) co_await pause;
  all->assign(static_cast<std::size_t>(place.size), {});
  for (int d = 1; d < place.size; ++d) (*all)[at(d)].resize(lengths[at(d)]);
  const std::uint64_t longest = *std::ranges::max_element(lengths);
  for (std::uint64_t start = 0; start < longest; start += control_piece_bytes) {
    for (int d = 1; d < place.size; ++d) {
      const int peer = static_cast<int>(at(d));
      if (start < lengths[at(d)]) {
        messages.receive(peer, (*all)[at(d)].data() + start, piece_at(start, lengths[at(d)]));
      }
      if (start < length) messages.send(peer, mine.data() + start, piece_at(start, length));
    }
    while (!messages.complete()) co_await pause;
  }
  (*all)[static_cast<std::size_t>(place.rank)] = std::move(mine);
}

}  // namespace octet::comm
