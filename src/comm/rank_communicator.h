// The communicator that all kinds of ranks share: collectives become operations, and operations run on the
// engine's thread, or in line when a rank is alone.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives.h"
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

class RankCommunicator final : public Communicator {
 public:
  RankCommunicator(Device& device, const RankOptions& options);
  ~RankCommunicator() override;

  const Place& place() const override { return place_; }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }
  void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) override;
  void all_gather(Stream& stream, const AllGatherArgs& args) override;
  void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) override;
  void barrier() override;
  std::string broadcast(const std::string& bytes, int root) override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;
  std::vector<std::int64_t> all_gather_int(std::int64_t value) override;
  void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) override;
  void watch(const WatchOptions& options) override;
  std::string trace() const override;
  std::vector<Traffic> take_traffic() override;
  double seconds_busy() const override;
  [[noreturn]] void abort(int code) override;

 private:
  struct Timed;

  std::shared_ptr<Timed> begin(Kind kind, Queue queue, const char* name, std::int64_t bytes);
  void enqueue(Stream& stream, std::shared_ptr<Timed> operation);
  void run(std::shared_ptr<Timed> operation);
  bool advance(Timed& operation);
  bool nothing_moves() const;
  void sum_alone(Stream& stream, const ReduceScatterArgs& args);
  void count(const Timed& operation);
  void count_under_way(int change);
  Queue queue_of(const Stream& stream) const;
  const Staging& staging_of(Queue queue) const;
  const Hierarchy& ways(bool by_node) const { return by_node ? hierarchy_ : flat_; }
  Staging reserve_staging(const char* name, std::int64_t elements);
  std::vector<std::string> gather_bytes(std::string bytes);
  void end_with_error();

  Device& device_;
  RankOptions options_;
  Transport& transport_;
  Place place_;
  Arena arena_;
  Hierarchy flat_;       ///< as if all ranks were on one node
  Hierarchy hierarchy_;  ///< as they are
  Staging gather_staging_;
  Staging reduce_staging_;
  std::unique_ptr<Stream> gather_;
  std::unique_ptr<Stream> reduce_;
  int exceptions_at_start_;
  bool removing_ = false;  ///< options_.removed, and training has begun
  unsigned sequence_[queue_count] = {};
  std::mutex control_mutex_;  // one control-plane call at a time
  mutable std::mutex traffic_mutex_;
  int under_way_ = 0;  // collectives of streams
  std::chrono::steady_clock::time_point busy_since_;
  double seconds_busy_ = 0;
  std::map<Kind, Traffic> traffic_;
};

}  // namespace octet::comm
