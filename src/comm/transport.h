// What collectives need of the world: point-to-point messages that never block, on lanes that do not meet.
// MPI, threads of one process and a lone rank implement it; everything above is shared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "octet/comm/channel.h"

namespace octet::comm {

/// What a lane is for. Gathers and reductions are bulk data; the others carry what ranks tell each other.
enum class Queue { gather, reduce, control, end, roll };
inline constexpr int queue_count = 5;

/// The last two are one kind on the wire: a message that a rank sends to another one.
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
/// What a message belongs to, in the 15 bits that every MPI offers: the kind of collective and, modulo 4096,
/// how many came before it on its lane (for messages between two ranks: between these two, this way).
int tag_of(Kind kind, unsigned sequence);

/// A group of ranks whose messages meet those of no other lane. Within one lane, messages from one rank to
/// another are received in the order in which they were sent.
struct Lane {
  int id = 0;  ///< the same on all ranks of the lane
  Queue queue{};
  std::string name;        ///< for messages and traces: "gather", "reduce of tensor", "control 'checkpoint'"
  Place place;             ///< this rank's among those of the lane
  std::vector<int> ranks;  ///< of the job, by number in the lane
};

/// Used by one thread at a time. Made, ended and, unless any_thread(), used in between by one thread alone,
/// the communication thread of its rank.
class Transport {
 public:
  virtual ~Transport() = default;
  /// In the job.
  virtual const Place& place() const = 0;
  /// Largest message in bytes; senders and receivers split alike.
  virtual std::size_t max_message() const = 0;

  /// A lane for messages among these ranks of the job, in ascending order, this one among them. All ranks of
  /// the job call it at the same time and in the same order, each with its own group, and nobody in two; it
  /// may wait for them. Lanes last as long as the transport.
  virtual int open_lane(Queue queue, const std::vector<int>& ranks) = 0;

  /// Begin a message of at most max_message() bytes to or from a rank, by its number in the lane; `data`
  /// stays untouched (or unread) until test() says that it is through. `tag` (0 to 32767) names the
  /// collective. Returns a ticket for test().
  virtual int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) = 0;
  virtual int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) = 0;
  /// True once the message is through; the ticket is then void. Throws Error when what arrived has another
  /// tag or size (the ranks disagree about which collective comes next) or when the job has failed.
  virtual bool test(int ticket) = 0;
  /// A message that waits and that no irecv has been posted for, if there is one.
  struct Waiting {
    int peer = 0;
    std::size_t bytes = 0;
  };
  virtual std::optional<Waiting> probe(int lane) = 0;
  /// Called now and then while nothing is in flight.
  virtual void progress() = 0;

  /// Orderly end, called when all ranks have agreed to it and nothing is in flight.
  virtual void finish() = 0;
  /// Ends the job on all ranks. MPI: does not return. Threads: all later test() throw this message.
  virtual void end_job(const std::string& message, int code) = 0;
  /// Called when a call of this transport threw RanksLost: lets go of all that is under way, so that its
  /// memory may go, and has the others meet the same. False where that cannot be done: then the job is to
  /// end.
  virtual bool let_go() { return false; }
  /// True when the rank is a process, which an aborted job ends.
  virtual bool is_process() const = 0;
  /// True when the calls between construction and finish() may come from any thread, one at a time.
  virtual bool any_thread() const = 0;
};

/// Fills what a place says about nodes, from a number for the node of every rank that no other node has.
void set_nodes(Place& place, const std::vector<int>& node_of);

/// The place among these ranks of the job, in ascending order, of one of them.
Place place_among(const Place& job, const std::vector<int>& ranks);
/// 0, 1, …, size - 1.
std::vector<int> all_ranks(int size);

/// What to say when the message that arrived is not the one that was awaited.
std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes);

}  // namespace octet::comm
