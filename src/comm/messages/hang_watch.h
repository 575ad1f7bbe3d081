// Watches collectives under way for hangs, and names the ranks that are missing from one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "job/hangs.h"
#include "messages/message_set.h"
#include "octet/base/timing.h"
#include "octet/comm/job.h"

namespace octet::comm {

/// One collective under way. `call` is declared before `steps`, which refer to it.
struct Operation {
  std::string what;        ///< for messages: "reduce_scatter 'block 3'"
  std::int64_t bytes = 0;  ///< size of one slice, or of the whole buffer if there are no slices
  std::uint64_t traced = 0;
  Call call;
  Steps steps;
  std::optional<std::chrono::steady_clock::time_point> moved;  ///< start or latest progress
  bool all_came = false;  ///< a query found that all ranks take part, and nothing has moved since then
};

/// Records the progress of operations. If nothing moves in an operation for the timeout, queries the other
/// ranks, so that the error names the missing ranks and not the ranks that wait for them. set() and traces()
/// are thread-safe. Only the thread that serves calls the other functions.
class HangWatch {
 public:
  /// `lane` includes all ranks. Both arguments must outlive this object. Nothing is watched before set(),
  /// except for the default timeout of 600 s.
  HangWatch(Transport& transport, const Lane& lane);

  /// Sets the timeout (0: not watched) and the folder of traces.
  void set(const WatchOptions& options);
  TraceRing& traces() { return traces_; }

  /// Records the begin of an operation.
  void began(Operation& operation);
  /// Records that a message of the operation is complete, or the whole operation.
  void moved(Operation& operation, bool finished);
  /// Called when a poll has found nothing new. Throws Error with exit code 75 if nothing has moved for the
  /// timeout, and the other ranks have answered or had time to answer.
  void waits(Operation& operation);
  /// Answers queries of other ranks, and writes the traces if SIGQUIT requested it.
  void serve();

 private:
  void look_for_the_missing(Operation& operation, double seconds);

  RollCall roll_;
  int rank_;
  TraceRing traces_;
  std::atomic<double> timeout_seconds_{600};
};

}  // namespace octet::comm
