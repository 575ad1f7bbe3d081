// A set of messages in flight that is waited for as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "transport.h"

namespace octet::comm {

/// One call of a collective on one rank.
struct Call {
  Transport* transport = nullptr;
  const Lane* lane = nullptr;
  int tag = 0;                     ///< kind and sequence number
  unsigned sequence = 0;           ///< collectives of its lane before it
  bool paired = false;             ///< between some ranks of the lane only, and not counted among those
  std::vector<int> partners = {};  ///< these, as ranks of the job
  std::int64_t bytes_sent = 0;     ///< so far
  std::int64_t bytes_between_nodes = 0;
  std::int64_t completed = 0;  ///< messages through so far, a sign of progress
  bool ends = false;           ///< its rank has done its work
  const char* name = "";       ///< of the collective
  bool sealed = false;         ///< a hash travels behind each message, and `notes` is told of broken ones
  class SealNotes* notes = nullptr;

  std::vector<class Messages*> open = {};  ///< those of this call, while they exist

  /// Among the ranks of the lane.
  const Place& place() const { return lane->place; }
  /// Ranks of the job of which something is missing, in order: those that have not sent, or, when all have,
  /// those that have not received. Asks the transport, so only who serves calls it.
  std::vector<int> missing_ranks();
};

class Messages {
 public:
  explicit Messages(Call& call) : call_(call) { call_.open.push_back(this); }
  ~Messages() { std::erase(call_.open, this); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Zero bytes send and receive nothing. A sealed message is hashed as it is sent.
  void send(int peer, const void* data, std::size_t bytes);
  void receive(int peer, void* data, std::size_t bytes);
  /// True when all messages are through; then those that were sealed have been compared.
  bool complete();

 private:
  friend struct Call;
  struct Message {
    int ticket = 0;
    int peer = 0;
    bool incoming = false;
    bool through = false;
  };
  /// The hash that travels behind a message.
  struct Seal {
    std::uint64_t hash = 0;
    int peer = 0;
    void* data = nullptr;  ///< what arrives before it; null: it is sent
    std::size_t bytes = 0;
  };
  bool test(Message& message);
  void post(int peer, const void* out, void* in, std::size_t bytes);
  void compare();

  Call& call_;
  std::list<Seal> seals_;  ///< they stay where they are; mostly there are none, which takes no memory
  std::vector<Message> messages_;
  std::size_t done_ = 0;
};

}  // namespace octet::comm
