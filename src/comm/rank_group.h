// A group of ranks as its data plane sees it: the lanes of its queues, how collectives begin, advance and are
// counted, and what its members tell each other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meter.h"
#include "octet/comm/collectives.h"
#include "rank_job.h"

namespace octet::comm {

class RankGroup {
 public:
  /// Collective over the job, whose ranks each name their own group. `job` outlives it. Throws Error where
  /// they do not agree.
  RankGroup(RankJob& job, const std::string& name, const std::vector<int>& ranks);

  const Place& place() const { return gather_.lane.place; }
  int rank_of_job(int rank) const { return gather_.lane.ranks.at(static_cast<std::size_t>(rank)); }
  MessageEngine* engine() const { return job_.engine(); }
  const RankOptions& options() const { return job_.options(); }

  // What its members tell each other, all of them at once.
  Channel& channel() { return *control_; }
  void barrier() { control_->barrier(); }
  void barrier_at_end() { control_->barrier_at_end(); }
  std::string broadcast(const std::string& bytes, int root) { return control_->broadcast(bytes, root); }
  std::vector<std::string> gather_bytes(const std::string& bytes) {
    return control_->all_gather_bytes(bytes);
  }
  std::vector<std::int64_t> gather_int(std::int64_t value) { return control_->all_gather_int(value); }
  std::string agreed(const std::function<void()>& attempt) { return control_->agreed(attempt); }

  /// A collective of one of the queues, numbered and traced.
  std::shared_ptr<Timed> begin(Kind kind, Queue queue, const char* name, std::int64_t bytes);
  /// A message to or from some members, which those alone take part in.
  std::shared_ptr<Timed> begin_between(Kind kind, Queue queue, const char* name, std::int64_t bytes,
                                       const std::vector<int>& partners);
  /// Counts a collective that a stream of `served` ones will poll with advance(), and tells the engine.
  void expect(Timed& timed);
  /// Lets a collective make progress: true when it is through. `counts` says whether its time and bytes are
  /// counted here.
  bool advance(Timed& timed, bool counts);
  Meter& meter() { return meter_; }

  /// Ends the engine's work for the streams of a data plane that goes away in order.
  void end(Stream& gather, Stream& reduce);
  /// The same while an exception is on its way through the program.
  void end_with_error(Stream& gather, Stream& reduce);

 private:
  struct Numbered {
    Lane lane;
    unsigned next = 0;
  };
  Numbered& of(Queue queue) { return queue == Queue::gather ? gather_ : reduce_; }

  RankJob& job_;
  Numbered gather_, reduce_;
  std::unique_ptr<RankChannel> control_;
  Meter meter_;
};

/// Throws std::logic_error unless [count] elements for each of `size` ranks fit an address space.
void check_sizes(std::int64_t size, std::int64_t count, std::size_t element);
/// Throws std::logic_error for arguments that no carrier takes: dtypes, missing buffers, buffers that
/// overlap.
void check_reduce_scatter(const ReduceScatterArgs& args, const Place& place);
void check_all_to_all(const AllToAllArgs& args, const Place& place);

/// A message to another rank, one from another, or both, in short.
struct Passing {
  Kind kind = Kind::send;
  const char* name = "";
  std::int64_t bytes = 0;     ///< of the longer one
  std::vector<int> partners;  ///< in the group
};
/// Throws std::logic_error for arguments that no carrier takes.
Passing check_pass(const SendArgs* out, const ReceiveArgs* in, const Place& place);

}  // namespace octet::comm
