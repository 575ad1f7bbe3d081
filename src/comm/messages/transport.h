// Point-to-point messages that never block, on separate lanes: the base of all collectives. Implemented by
// MPI, by threads of one process and for a single rank. All code above is shared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/channel.h"

namespace octet::comm {

/// Purpose of a lane. Gathers and reductions are bulk data; the other lanes carry host-side messages.
enum class Queue { gather, reduce, control, end, roll };
inline constexpr int queue_count = 5;

/// `send` and `receive` are one kind on the wire: a message from one rank to another.
enum class Kind {
  reduce_scatter,
  all_gather,
  all_reduce_max,
  all_reduce_sum,
  control,
  all_gather_values,
  all_to_all,
  send,
  receive
};
const char* name_of(Queue queue);
const char* name_of(Kind kind);
/// Returns the tag of a message, in the 15 bits that every MPI offers. It holds the kind of collective and,
/// modulo 4096, the number of earlier collectives on its lane. For messages between two ranks, it holds the
/// number of earlier messages between them in this direction.
int tag_of(Kind kind, unsigned sequence);

/// A group of ranks with messages that never match messages of another lane. Within one lane, messages from
/// one rank to another are received in the order of sending.
struct Lane {
  int id = 0;  ///< the same on all ranks of the lane
  Queue queue{};
  std::string name;        ///< for messages and traces: "gather", "reduce of tensor", "control 'checkpoint'"
  Place place;             ///< this rank's place among the ranks of the lane
  std::vector<int> ranks;  ///< of the job, by number in the lane
};

/// Used by one thread at a time. The communication thread of the rank creates and ends it. Unless
/// any_thread(), all other calls come from that thread too.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Returns the place in the job.
  virtual const Place& place() const = 0;
  /// Returns the largest message in bytes. Senders and receivers split larger ones alike.
  virtual std::size_t max_message() const = 0;

  /// Opens a lane for messages among these ranks of the job, in ascending order, which include this rank. All
  /// ranks of the job call it at the same time and in the same order, each with its own group. No rank is in
  /// two groups. May wait for the other ranks. Lanes live as long as the transport.
  virtual int open_lane(Queue queue, const std::vector<int>& ranks) = 0;

  /// Starts a message of at most max_message() bytes to or from a rank, by its number in the lane. `data`
  /// must not be changed (or read, for irecv) until test() returns true. `tag` (0 to 32767) identifies the
  /// collective. Returns a ticket for test().
  virtual int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) = 0;
  virtual int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) = 0;
  /// Returns true when the message is complete; the ticket is then invalid. Throws Error if the job has
  /// failed. Also throws Error if the arrived message has another tag or size, because the ranks then
  /// disagree about the next collective.
  virtual bool test(int ticket) = 0;
  /// A message that has arrived without a posted irecv, if there is one.
  struct Waiting {
    int peer = 0;
    std::size_t bytes = 0;
  };
  virtual std::optional<Waiting> probe(int lane) = 0;
  /// Makes progress. Called now and then while nothing is in flight.
  virtual void progress() = 0;

  /// Ends the transport in order. Called when all ranks have agreed to end and nothing is in flight.
  virtual void finish() = 0;
  /// Ends the job on all ranks. MPI: does not return. Threads: all later test() throw this message.
  virtual void end_job(const std::string& message, int code) = 0;
  /// Called after a call of this transport threw RanksLost. Releases all messages under way, so their memory
  /// may be freed, and makes the other ranks throw RanksLost too. Returns false if that is impossible; the
  /// job must then end.
  virtual bool let_go() { return false; }
  /// Returns true if the rank is a process, which an aborted job ends.
  virtual bool is_process() const = 0;
  /// Returns true if the calls between construction and finish() may come from any thread, one at a time.
  virtual bool any_thread() const = 0;
};

/// Sets the node fields of a place. `node_of` gives each rank the number of its node, unique per node.
void set_nodes(Place& place, const std::vector<int>& node_of);

/// Returns this rank's place among `ranks`, which are ranks of the job in ascending order.
Place place_among(const Place& job, const std::vector<int>& ranks);
/// Returns 0, 1, …, size - 1.
std::vector<int> all_ranks(int size);

/// Returns the message for an arrived message with an unexpected tag or size.
std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes);

}  // namespace octet::comm
