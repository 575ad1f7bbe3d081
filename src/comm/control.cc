#include "control.h"

#include <cstdint>
#include <cstring>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

// A length, then as many bytes: the receiver does not know how much comes.
Steps send_string(Call& call, int peer, const std::string* bytes) {
  const std::uint64_t length = bytes->size();
  Messages messages(call);
  messages.send(peer, &length, sizeof length);
  messages.send(peer, bytes->data(), length);
  while (!messages.complete()) co_await pause;
}

Steps receive_string(Call& call, int peer, std::string* bytes) {
  std::uint64_t length = 0;
  Messages messages(call);
  messages.receive(peer, &length, sizeof length);
  while (!messages.complete()) co_await pause;
  bytes->resize(length);
  messages.receive(peer, bytes->data(), length);
  while (!messages.complete()) co_await pause;
}

void append(std::string& packed, const std::string& bytes) {
  const std::uint64_t length = bytes.size();
  packed.append(reinterpret_cast<const char*>(&length), sizeof length);
  packed.append(bytes);
}

std::vector<std::string> unpack(const std::string& packed, int count) {
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (int i = 0; i < count; ++i) {
    std::uint64_t length = 0;
    check(packed.size() - at >= sizeof length, "a packed list of strings is whole");
    std::memcpy(&length, packed.data() + at, sizeof length);
    at += sizeof length;
    check(packed.size() - at >= length, "a packed list of strings is whole");
    parts.push_back(packed.substr(at, length));
    at += length;
  }
  check(at == packed.size(), "a packed list of strings is whole");
  return parts;
}

}  // namespace

Steps broadcast_steps(Call& call, std::string* bytes, int root) {
  const int size = call.place().size;
  const int place = (call.place().rank - root + size) % size;  // in the tree whose root is 0
  const auto rank_at = [&](int p) { return (p + root) % size; };
  int step = 1;
  for (; step < size; step *= 2) {
    if (place & step) {
      Steps receive = receive_string(call, rank_at(place - step), bytes);
      while (!receive.resume()) co_await pause;
      break;
    }
  }
  for (step /= 2; step > 0; step /= 2) {
    if (place + step >= size) continue;
    Steps send = send_string(call, rank_at(place + step), bytes);
    while (!send.resume()) co_await pause;
  }
}

Steps all_gather_bytes_steps(Call& call, std::string mine, std::vector<std::string>* all) {
  const int size = call.place().size;
  const int rank = call.place().rank;
  // Up the tree: after step s a rank holds the strings of [rank, rank + 2s), in order.
  std::string packed;
  append(packed, mine);
  for (int step = 1; step < size; step *= 2) {
    if (rank & step) {
      Steps send = send_string(call, rank - step, &packed);
      while (!send.resume()) co_await pause;
      break;
    }
    if (rank + step < size) {
      std::string part;
      Steps receive = receive_string(call, rank + step, &part);
      while (!receive.resume()) co_await pause;
      packed += part;
    }
  }
  Steps broadcast = broadcast_steps(call, &packed, 0);
  while (!broadcast.resume()) co_await pause;
  *all = unpack(packed, size);
}

}  // namespace octet::comm
