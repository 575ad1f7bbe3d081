// The ranks of a job with sharding groups: a grid replica x shard.
#pragma once

#include <memory>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/store/store.h"

namespace octet::runtime {

/// The collectives of this rank's sharding group, and of the ranks with the same shards. All ranks of the job
/// make the same calls.
class ShardRanks {
 public:
  /// `device` and `job` must outlive this. Requires store::has_replicas().
  ShardRanks(comm::Job& job, Device& device, const store::Options& options, const comm::Carrying& carrying);

  store::GroupAxes axes() { return {.shards = shards_.get(), .replicas = replicas_.get()}; }
  /// Reserves the staging memory of both groups, for plans.
  void reserve_staging(Arena& arena) const;
  std::vector<comm::Traffic> take_traffic();
  /// Returns the sum of Collectives::seconds_busy() of both groups.
  double seconds_busy() { return shards_->seconds_busy() + replicas_->seconds_busy(); }

 private:
  std::unique_ptr<comm::Collectives> shards_, replicas_;
};

}  // namespace octet::runtime
