// The ranks of a job with expert parallelism: a grid data x expert.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/group_messages.h"

namespace octet::runtime {

/// Throws Error (usage) on all ranks if experts cannot be split among `size` ranks.
void require_expert_split(comm::Channel& job, const model::Architecture& architecture, std::int64_t size);

/// This rank's groups along both axes. All ranks of the job make the same calls.
class ExpertRanks final : public model::TokenExchange {
 public:
  /// `device` and `job` must outlive this. Requires require_expert_split().
  ExpertRanks(comm::Job& job, Device& device, int size, const comm::Carrying& carrying);

  /// The ranks with the same experts.
  comm::Collectives& same_experts() { return *data_; }
  /// This rank's place among the ranks that exchange tokens.
  const comm::Place& place() const { return expert_->place(); }
  /// Reserves the staging memory of both groups, for plans.
  void reserve_staging(Arena& arena) const;
  std::vector<comm::Traffic> take_traffic();

  int rank() const override { return expert_->rank(); }
  int size() const override { return expert_->size(); }
  std::vector<std::int32_t> gather(std::span<const std::int32_t> own) override;
  void together(const std::function<void()>& act) override;
  void start(Stream& compute, const char* name, const Rows& rows) override;
  void finish(Stream& compute) override { compute.wait(*done_); }

 private:
  Device& device_;
  std::unique_ptr<comm::Collectives> data_, expert_;
  std::unique_ptr<comm::Channel> counts_;
  bool is_whole_job_;  ///< the ranks that exchange tokens are all ranks
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace octet::runtime
