// A set of messages in flight that is awaited as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "messages/transport.h"

namespace octet::comm {

/// One call of a collective on one rank.
struct Call {
  Transport* transport = nullptr;
  const Lane* lane = nullptr;
  int tag = 0;                     ///< kind and sequence number
  unsigned sequence = 0;           ///< earlier collectives of its lane
  bool paired = false;             ///< only between some ranks of the lane; not in their sequence
  std::vector<int> partners = {};  ///< these ranks, numbered in the job
  std::int64_t bytes_sent = 0;     ///< so far
  std::int64_t bytes_between_nodes = 0;
  std::int64_t completed = 0;  ///< completed messages, a sign of progress
  bool ends = false;           ///< this rank has done its work
  const char* name = "";       ///< of the collective
  bool sealed = false;         ///< a hash follows each message, and `notes` records broken ones
  class SealNotes* notes = nullptr;

  std::vector<class Messages*> open = {};  ///< sets of messages of this call

  /// Returns the place among the ranks of the lane.
  const Place& place() const { return lane->place; }
  /// Returns the ranks of the job that block this call, in order: ranks that have not sent, or, if all have
  /// sent, ranks that have not received. Queries the transport, so only the serving thread calls it.
  std::vector<int> missing_ranks();
};

class Messages {
 public:
  explicit Messages(Call& call) : call_(call) { call_.open.push_back(this); }
  ~Messages() { std::erase(call_.open, this); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Messages of zero bytes are skipped. A sealed message is hashed when it is sent.
  void send(int peer, const void* data, std::size_t bytes);
  void receive(int peer, void* data, std::size_t bytes);
  /// Returns true when all messages are complete and all sealed messages are verified.
  bool complete();

 private:
  friend struct Call;
  struct Message {
    int ticket = 0;
    int peer = 0;
    bool incoming = false;
    bool through = false;
  };
  /// The hash that follows a message.
  struct Seal {
    std::uint64_t hash = 0;
    int peer = 0;
    void* data = nullptr;  ///< received message; null: the message is sent
    std::size_t bytes = 0;
  };
  bool test(Message& message);
  void post(int peer, const void* out, void* in, std::size_t bytes);
  void compare();

  Call& call_;
  std::list<Seal> seals_;  ///< addresses are stable; usually empty, which allocates nothing
  std::vector<Message> messages_;
  std::size_t done_ = 0;
};

}  // namespace octet::comm
