// A rank as part of its job: the control plane, the watch over collectives, and the orderly end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "meter.h"
#include "octet/comm/communicator.h"
#include "rank_channel.h"

namespace octet::comm {

/// How a rank is made and ended.
struct RankOptions {
  std::shared_ptr<Engine> engine;        ///< null: `transport` is used in line
  std::shared_ptr<Transport> transport;  ///< of a rank without an engine
  bool end_engine = false;               ///< shut the engine down, in agreement with all ranks, at the end
  /// For measurements: from the first reduce_scatter on, it and gathers send nothing, and results are wrong.
  /// What was gathered before is there, since products with zeros take less time than others.
  bool removed = false;
  /// Ranks that are threads: throws when the job has failed. Called by whoever waits for others.
  std::function<void()> alive = {};
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
  /// Of all ranks, for their main threads.
  RankChannel& control() { return *control_; }
  /// Another one of all ranks. All call it.
  std::unique_ptr<Channel> open_channel(const std::string& name);
  void watch(const WatchOptions& options);
  std::string trace() const;
  [[noreturn]] void abort(int code);

  /// A collective of a lane, traced. `lane` outlives it.
  std::shared_ptr<Timed> begin(Kind kind, const Lane& lane, unsigned sequence, const char* name,
                               std::int64_t bytes);
  /// Goes through the control plane's `timed`, and counts it.
  void run(std::shared_ptr<Timed> timed);
  /// What channels have sent.
  Meter& meter() { return meter_; }

  /// Ends the engine's work for a job that goes away in order.
  void end();

 private:
  RankOptions options_;
  Transport& transport_;
  Place place_;
  Meter meter_;
  std::unique_ptr<RankChannel> control_;
};

}  // namespace octet::comm
