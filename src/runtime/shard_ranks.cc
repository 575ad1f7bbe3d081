#include "shard_ranks.h"

#include <algorithm>
#include <iterator>

#include "octet/comm/mesh.h"

namespace octet::runtime {

ShardRanks::ShardRanks(comm::Job& job, Device& device, const store::Options& options,
                       const comm::Carrying& carrying) {
  const comm::Mesh mesh = store::group_mesh(options, job.size());
  shards_ = job.collectives(mesh.group(store::kShardAxis, job.rank()), device, carrying);
  replicas_ = job.collectives(mesh.group(store::kReplicaAxis, job.rank()), device, carrying);
}

void ShardRanks::reserve_staging(Arena& arena) const {
  for (const comm::Collectives* group : {shards_.get(), replicas_.get()})
    arena.reserve("communication/groups", comm::staging_bytes(group->size(), arena.device().stands_for()));
}

std::vector<comm::Traffic> ShardRanks::take_traffic() {
  std::vector<comm::Traffic> taken = shards_->take_traffic();
  std::ranges::move(replicas_->take_traffic(), std::back_inserter(taken));
  return taken;
}

}  // namespace octet::runtime
