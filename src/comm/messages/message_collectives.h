// Collectives over messages, served by the engine's thread, for ranks on CPUs. A single rank sends nothing,
// and its collectives run when they are enqueued.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "job/rank_group.h"
#include "messages/message_set.h"
#include "messages/transport_collectives.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"

namespace octet::comm {

class MessageCollectives final : public Collectives, public Seals {
 public:
  MessageCollectives(Device& device, RankJob& job, const Group& group);
  ~MessageCollectives() override;

  const Place& place() const override { return group_.place(); }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }
  void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) override;
  void all_gather(Stream& stream, const AllGatherArgs& args) override;
  void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) override;
  void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) override;
  void all_reduce_sums(Stream& stream, const char* name, std::int64_t* integers, std::int64_t integer_count,
                       double* doubles, std::int64_t double_count) override;
  void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) override;
  void all_to_all(Stream& stream, const AllToAllArgs& args) override;
  void share(const std::vector<SharedMemory>&) override {}
  void unshare(const std::vector<SharedMemory>&) override {}
  Channel& channel() override { return group_.channel(); }
  std::vector<Traffic> take_traffic() override { return group_.meter().take(); }
  void take_times(bool) override {}
  double seconds_busy() override { return group_.meter().seconds_busy(); }
  std::string carrier() const override { return place().size > 1 ? "messages" : ""; }

  void seal(bool on) override { sealed_ = on; }
  std::vector<BrokenMessage> take_broken() override { return notes_.take(); }
  void spoil(std::uint64_t draw) override { notes_.spoil(draw); }

 private:
  void pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) override;
  void enqueue(Stream& stream, const std::shared_ptr<Timed>& operation);
  void reduce_all(Stream& stream, Kind kind, const char* name,
                  const std::vector<struct ReducedValues>& values);
  bool nothing_moves() const;
  void sum_alone(Stream& stream, const ReduceScatterArgs& args);
  Queue queue_of(const Stream& stream) const;
  const Staging& staging_of(Queue queue) const;
  const Hierarchy& ways(bool hierarchical) const { return hierarchical ? hierarchy_ : flat_; }
  Staging reserve(const char* name, Staging staging);

  Device& device_;
  RankGroup group_;
  Arena arena_;
  Hierarchy flat_;       ///< as if all ranks were on one node
  Hierarchy hierarchy_;  ///< as they are
  Staging gather_staging_;
  Staging reduce_staging_;
  std::unique_ptr<Stream> gather_;
  std::unique_ptr<Stream> reduce_;
  int exceptions_at_start_;
  bool sealed_ = false;
  SealNotes notes_;
  bool removing_ = false;  ///< RankOptions::removed, and training has begun
};

}  // namespace octet::comm
