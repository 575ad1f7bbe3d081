#include "control.h"

#include <cstdint>

namespace octet::comm {
namespace {

// A length, then as many bytes: the receiver does not know how much comes.
Steps receive_string(Call& call, int peer, std::string* bytes) {
  std::uint64_t length = 0;
  Messages messages(call);
  messages.receive(peer, &length, sizeof length);
  while (!messages.complete()) co_await pause;
  bytes->resize(length);
  messages.receive(peer, bytes->data(), length);
  while (!messages.complete()) co_await pause;
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
  for (int d = 1; d < place.size; ++d) {
    const int peer = (root + d) % place.size;
    messages.send(peer, &length, sizeof length);
    messages.send(peer, bytes->data(), length);
  }
  while (!messages.complete()) co_await pause;
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
  for (int d = 1; d < place.size; ++d) {
    std::string& part = (*all)[at(d)];
    part.resize(lengths[at(d)]);
    messages.receive(static_cast<int>(at(d)), part.data(), part.size());
    messages.send(static_cast<int>(at(d)), mine.data(), mine.size());
  }
  while (!messages.complete()) co_await pause;
  (*all)[static_cast<std::size_t>(place.rank)] = std::move(mine);
}

}  // namespace octet::comm
