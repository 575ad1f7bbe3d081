// A set of messages in flight that is waited for as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport.h"

namespace octet::comm {

/// One call of a collective on one rank.
struct Call {
  Transport* transport = nullptr;
  Queue queue = Queue::control;
  int tag = 0;                  ///< kind and sequence number
  std::int64_t bytes_sent = 0;  ///< so far
  std::int64_t completed = 0;   ///< messages through so far, a sign of progress

  const Place& place() const { return transport->place(); }
};

class Messages {
 public:
  explicit Messages(Call& call) : call_(call) {}

  /// Zero bytes send and receive nothing.
  void send(int peer, const void* data, std::size_t bytes);
  void receive(int peer, void* data, std::size_t bytes);
  /// True when all messages are through.
  bool complete();

 private:
  Call& call_;
  std::vector<int> tickets_;
  std::size_t done_ = 0;
};

}  // namespace octet::comm
