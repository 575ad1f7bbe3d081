// What collectives need of the world: point-to-point messages that never block. MPI, threads of one process
// and a lone rank implement it; everything above is shared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "octet/comm/communicator.h"

namespace octet::comm {

/// Messages of different queues never meet. Within one queue, messages from one rank to another are received
/// in the order in which they were sent.
enum class Queue { gather, reduce, control, end, roll };
inline constexpr int queue_count = 5;

enum class Kind { reduce_scatter, all_gather, all_reduce_max, all_reduce_sum, control, all_gather_values };
const char* name_of(Queue queue);
const char* name_of(Kind kind);
/// What a message belongs to, in the 15 bits that every MPI offers: the kind of collective and, modulo 4096,
/// how many came before it on its queue.
int tag_of(Kind kind, unsigned sequence);

/// Used by one thread alone, the communication thread of its rank, from construction to destruction.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const Place& place() const = 0;
  /// Largest message in bytes; senders and receivers split alike.
  virtual std::size_t max_message() const = 0;

  /// Begin a message of at most max_message() bytes; `data` stays untouched (or unread) until test() says
  /// that it is through. `tag` (0 to 32767) names the collective. Returns a ticket for test().
  virtual int isend(Queue queue, int peer, int tag, const void* data, std::size_t bytes) = 0;
  virtual int irecv(Queue queue, int peer, int tag, void* data, std::size_t bytes) = 0;
  /// True once the message is through; the ticket is then void. Throws Error when what arrived has another
  /// tag or size (the ranks disagree about which collective comes next) or when the job has failed.
  virtual bool test(int ticket) = 0;
  /// A rank from which a message waits that no irecv has been posted for, if there is one.
  virtual std::optional<int> probe(Queue queue) = 0;
  /// Called now and then while nothing is in flight.
  virtual void progress() = 0;

  /// Orderly end, called when all ranks have agreed to it and nothing is in flight.
  virtual void finish() = 0;
  /// Ends the job on all ranks. MPI: does not return. Threads: all later test() throw this message.
  virtual void end_job(const std::string& message, int code) = 0;
  /// True when the rank is a process, which an aborted job ends.
  virtual bool is_process() const = 0;
};

/// Fills what a place says about nodes, from a number for the node of every rank that no other node has.
void set_nodes(Place& place, const std::vector<int>& node_of);

/// What to say when the message that arrived is not the one that was awaited.
std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes);

}  // namespace octet::comm
