// What ranks of all kinds share beside their data plane: the control plane, the watch over collectives, the
// counters of their traffic, and the orderly end.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine.h"
#include "octet/comm/communicator.h"

namespace octet::comm {

/// How a communicator is made and ended.
struct RankOptions {
  std::shared_ptr<Engine> engine;        ///< null: `transport` is used in line
  std::shared_ptr<Transport> transport;  ///< of a rank without an engine
  bool end_engine = false;               ///< shut the engine down, in agreement with all ranks, at the end
  /// For measurements: from the first reduce_scatter on, it and gathers send nothing, and results are wrong.
  /// What was gathered before is there, since products with zeros take less time than others.
  bool removed = false;
};

/// A collective on its way through the engine's thread.
struct Timed {
  Operation operation;
  Kind kind{};
  bool started = false;
  std::chrono::steady_clock::time_point start;
  Engine* engine = nullptr;  ///< told when the collective is over, also when its stream dropped it
  ~Timed() {
    if (engine != nullptr) engine->end_collective();
  }
};

class RankJob {
 public:
  explicit RankJob(const RankOptions& options);

  const Place& place() const { return place_; }
  Engine* engine() const { return options_.engine.get(); }
  const RankOptions& options() const { return options_; }

  void barrier() { gather_bytes({}); }
  /// The same, of ranks that have done their work: those who miss one in another collective are told so.
  void barrier_at_end() { gather_all({}, true); }
  std::string broadcast(const std::string& bytes, int root);
  std::vector<std::string> gather_bytes(std::string bytes);
  std::vector<std::int64_t> gather_int(std::int64_t value);
  /// Collective. Runs `attempt` on every rank: empty when all came through, else what the first one that failed
  /// says, the same on all ranks.
  std::string agreed(const std::function<void()>& attempt);
  void watch(const WatchOptions& options);
  std::string trace() const;
  [[noreturn]] void abort(int code);

  /// A collective of one of the queues, numbered and traced.
  std::shared_ptr<Timed> begin(Kind kind, Queue queue, const char* name, std::int64_t bytes);
  /// Counts a collective that a stream of `served` ones will poll with advance(), and tells the engine.
  void expect(Timed& timed);
  /// Lets a collective make progress: true when it is through. `counts` says whether its time and bytes are
  /// counted here.
  bool advance(Timed& timed, bool counts);

  /// Adds to the counters of a kind.
  void count(Kind kind, const Traffic& traffic);
  std::vector<Traffic> take_traffic();
  double seconds_busy() const;

  /// Ends the engine's work for a communicator that goes away in order.
  void end();
  /// The same while an exception is on its way through the program.
  void end_with_error();

 private:
  std::vector<std::string> gather_all(std::string bytes, bool ends);
  void run(std::shared_ptr<Timed> timed);
  void count(const Timed& timed);
  void count_under_way(int change);

  RankOptions options_;
  Transport& transport_;
  Place place_;
  unsigned sequence_[queue_count] = {};
  std::mutex control_mutex_;  // one control-plane call at a time
  mutable std::mutex traffic_mutex_;
  int under_way_ = 0;  // collectives of streams
  std::chrono::steady_clock::time_point busy_since_;
  double seconds_busy_ = 0;
  std::map<Kind, Traffic> traffic_;
};

/// Throws std::logic_error unless [count] elements for each of `size` ranks fit an address space.
void check_sizes(std::int64_t size, std::int64_t count, std::size_t element);
/// Throws std::logic_error for arguments that no carrier takes: dtypes, missing buffers, buffers that overlap.
void check_reduce_scatter(const ReduceScatterArgs& args, const Place& place);

}  // namespace octet::comm
