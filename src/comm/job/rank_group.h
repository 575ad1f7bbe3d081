// A group of ranks as its data plane uses it: the lanes of its queues, the start, progress and counts of
// collectives, and the control channel of the members.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "job/rank_job.h"
#include "meter.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

class RankGroup {
 public:
  /// Collective over the job. Each rank names its own group. `job` must outlive the object. Throws Error if
  /// the ranks disagree.
  RankGroup(RankJob& job, const std::string& name, const std::vector<int>& ranks);

  const Place& place() const { return gather_.lane.place; }
  int rank_of_job(int rank) const { return gather_.lane.ranks.at(static_cast<std::size_t>(rank)); }
  MessageEngine* engine() const { return job_.engine(); }
  const RankOptions& options() const { return job_.options(); }

  // Control messages. All members call each function together.
  Channel& channel() { return *control_; }
  void barrier() { control_->barrier(); }
  void barrier_at_end() { control_->barrier_at_end(); }
  std::string broadcast(const std::string& bytes, int root) { return control_->broadcast(bytes, root); }
  std::vector<std::string> gather_bytes(const std::string& bytes) {
    return control_->all_gather_bytes(bytes);
  }
  std::vector<std::int64_t> gather_int(std::int64_t value) { return control_->all_gather_int(value); }
  std::string agreed(const std::function<void()>& attempt) { return control_->agreed(attempt); }

  /// Begins a collective of a queue, with number and trace.
  std::shared_ptr<Timed> begin(Kind kind, Queue queue, const char* name, std::int64_t bytes);
  /// Begins a message in which only this rank and `partners` take part.
  std::shared_ptr<Timed> begin_between(Kind kind, Queue queue, const char* name, std::int64_t bytes,
                                       const std::vector<int>& partners);
  /// Counts a collective that a stream of the CPU will poll with advance(), and notifies the engine.
  void expect(Timed& timed);
  /// Advances a collective. Returns true when it is complete. With `counts`, its time and bytes are counted
  /// here.
  bool advance(Timed& timed, bool counts);
  Meter& meter() { return meter_; }

  /// Ends the engine's work for these streams when the data plane is destroyed normally.
  void end(Stream& gather, Stream& reduce);
  /// Like end(), while an exception unwinds the program.
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
/// Throw std::logic_error for invalid dtypes, missing buffers and overlapping buffers.
void check_reduce_scatter(const ReduceScatterArgs& args, const Place& place);
void check_all_to_all(const AllToAllArgs& args, const Place& place);

/// Summary of a send, of a receive, or of both at once.
struct Passing {
  Kind kind = Kind::send;
  const char* name = "";
  std::int64_t bytes = 0;     ///< bytes of the longer message
  std::vector<int> partners;  ///< ranks in the group
};
/// Throws std::logic_error for invalid peers or buffers.
Passing check_pass(const SendArgs* out, const ReceiveArgs* in, const Place& place);

}  // namespace octet::comm
