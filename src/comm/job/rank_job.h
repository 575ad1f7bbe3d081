// A rank as part of its job: the control plane, the watch over collectives, and the orderly end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "messages/message_engine.h"
#include "messages/transport.h"
#include "meter.h"
#include "octet/comm/channel.h"
#include "octet/comm/job.h"

namespace octet::comm {

// Control channel between the ranks of a job. Every call is a request to the communication thread, on the
// channel's own lane.

class RankJob;

class RankChannel final : public Channel {
 public:
  /// `job` must outlive the object. `title` is the channel's name in traces.
  RankChannel(RankJob& job, Lane lane, std::string title = {});

  const Place& place() const override { return lane_.place; }
  int rank_of_job(int rank) const override { return lane_.ranks.at(static_cast<std::size_t>(rank)); }
  std::string broadcast(const std::string& bytes, int root) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;

  /// Barrier at the end of the work. If other ranks are in another collective, the error tells them that this
  /// rank has ended.
  void barrier_at_end();
  /// Opens lanes of these kinds for a group of ranks of the job. The channel must span all ranks, and each
  /// rank names its own group. Throws Error on all ranks if they disagree.
  std::vector<Lane> open_lanes(const std::string& group, const std::vector<int>& ranks,
                               const std::vector<Queue>& queues);

 private:
  std::vector<std::string> gather(const std::string& bytes, bool ends);

  RankJob& job_;
  Lane lane_;
  std::string title_;
  unsigned sequence_ = 0;
  std::mutex mutex_;  // one call at a time
};

/// Options for creating and ending a rank.
struct RankOptions {
  std::shared_ptr<MessageEngine> engine;  ///< null: `transport` is used in line
  std::shared_ptr<Transport> transport;   ///< of a rank without an engine
  bool end_engine = false;  ///< shut the engine down, in agreement with all ranks, at an orderly end
  /// For measurements: from the first reduce_scatter on, reductions and gathers send nothing, and results are
  /// wrong. Earlier gathers ran, because GEMMs with zeros take less time than others.
  bool removed = false;
  /// For ranks that are threads: throws if the job has failed. Called by threads that wait for others.
  std::function<void()> alive = {};
};

/// A collective that runs in the engine's thread.
struct Timed {
  Operation operation;
  Kind kind{};
  bool started = false;
  std::chrono::steady_clock::time_point start;
  MessageEngine* engine = nullptr;  ///< notified when the collective ends, also if its stream dropped it
  ~Timed() {
    if (engine != nullptr) engine->end_collective();
  }
};

class RankJob final : public Job {
 public:
  explicit RankJob(const RankOptions& options);
  ~RankJob() override;

  const Place& place() const override { return place_; }
  std::string broadcast(const std::string& bytes, int root) override {
    return control_->broadcast(bytes, root);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return control_->all_gather_bytes(bytes);
  }
  std::unique_ptr<Channel> channel(const std::string& name) override;
  std::unique_ptr<Channel> channel(const std::string& name, const Group& group) override;
  std::unique_ptr<Collectives> collectives(const Group& group, Device& device, Carrying carrying) override;
  void watch(const WatchOptions& options) override;
  std::string trace() const override;
  std::vector<Traffic> take_traffic() override { return meter_.take(); }
  bool others_lost() const override { return options_.engine != nullptr && options_.engine->others_lost(); }
  [[noreturn]] void abort(int code) override;

  MessageEngine* engine() const { return options_.engine.get(); }
  const RankOptions& options() const { return options_; }
  /// Channel of all ranks, for their main threads.
  RankChannel& control() { return *control_; }
  /// Starts a traced collective of a lane. `lane` must outlive it.
  std::shared_ptr<Timed> begin(Kind kind, const Lane& lane, unsigned sequence, const char* name,
                               std::int64_t bytes);
  /// Runs a control-plane collective and counts it.
  void run(const std::shared_ptr<Timed>& timed);

 private:
  RankOptions options_;
  Transport& transport_;
  Place place_;
  Meter meter_;
  std::unique_ptr<RankChannel> control_;
  int exceptions_at_start_;
};

}  // namespace octet::comm
