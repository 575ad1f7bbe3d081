// The communicator of ranks whose collectives are messages, served by the engine's thread: ranks on CPUs. A
// rank that is alone sends nothing, and its collectives run where they are enqueued.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives.h"
#include "octet/comm/communicator.h"
#include "octet/comm/mesh.h"
#include "rank_group.h"

namespace octet::comm {

class RankCommunicator final : public Communicator {
 public:
  RankCommunicator(Device& device, std::shared_ptr<RankJob> job, const Group& group);
  ~RankCommunicator() override;

  const Place& place() const override { return group_.place(); }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }
  void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) override;
  void all_gather(Stream& stream, const AllGatherArgs& args) override;
  void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) override;
  void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) override;
  void share(const std::vector<SharedMemory>&) override {}
  void unshare(const std::vector<SharedMemory>&) override {}
  std::string broadcast(const std::string& bytes, int root) override {
    return job_->control().broadcast(bytes, root);
  }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return job_->control().all_gather_bytes(bytes);
  }
  std::unique_ptr<Channel> channel(const std::string& name) override { return job_->open_channel(name); }
  void watch(const WatchOptions& options) override { job_->watch(options); }
  std::string trace() const override { return job_->trace(); }
  std::vector<Traffic> take_traffic() override;
  double seconds_busy() override { return group_.meter().seconds_busy(); }
  std::string carrier() const override { return place().size > 1 ? "messages" : ""; }
  [[noreturn]] void abort(int code) override { job_->abort(code); }

 private:
  void enqueue(Stream& stream, std::shared_ptr<Timed> operation);
  bool nothing_moves() const;
  void sum_alone(Stream& stream, const ReduceScatterArgs& args);
  Queue queue_of(const Stream& stream) const;
  const Staging& staging_of(Queue queue) const;
  const Hierarchy& ways(bool by_node) const { return by_node ? hierarchy_ : flat_; }
  Staging reserve_staging(const char* name, std::int64_t elements);

  Device& device_;
  std::shared_ptr<RankJob> job_;
  RankGroup group_;
  Arena arena_;
  Hierarchy flat_;       ///< as if all ranks were on one node
  Hierarchy hierarchy_;  ///< as they are
  Staging gather_staging_;
  Staging reduce_staging_;
  std::unique_ptr<Stream> gather_;
  std::unique_ptr<Stream> reduce_;
  int exceptions_at_start_;
  bool removing_ = false;  ///< RankOptions::removed, and training has begun
};

}  // namespace octet::comm
