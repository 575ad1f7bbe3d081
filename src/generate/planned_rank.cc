#include "octet/generate/planned_rank.h"

#include "octet/comm/mesh.h"

namespace octet::generate {
namespace {

comm::Place place_of(int rank, int size) {
  comm::Place place{.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  place.node_of.assign(static_cast<std::size_t>(size), 0);
  return place;
}

}  // namespace

PlannedRank::PlannedRank(DeviceKind stands_for, int rank, int tensor_size, int stages)
    : device_(make_dry_device({.stands_for = stands_for})) {
  if (tensor_size * stages > 1) {
    job_ = comm::make_dry_job(place_of(rank, tensor_size * stages));
    team_ = std::make_unique<Team>(*job_, *device_, tensor_size, stages);
    return;
  }
  job_ = comm::make_self_job();
  data_ = job_->collectives(comm::Mesh(1).group("data", 0), *device_, comm::Carrier::automatic);
}

std::unique_ptr<Decoder> PlannedRank::decoder(const DecoderOptions& options) const {
  if (team_) return std::make_unique<Decoder>(*device_, *team_, options);
  return std::make_unique<Decoder>(*device_, *job_, *data_, options);
}

std::size_t PlannedRank::staging_bytes() const {
  if (!team_) return 0;
  const DeviceKind kind = device_->stands_for();
  const model::Share& share = team_->share();
  // The staging buffers of the session, which always exist, and the buffers of the team.
  return comm::staging_bytes(job_->size(), kind) +
         team_staging_bytes(share.tensor_size, share.stages, kind);
}

int first_rank_of_stage(int stage, int tensor_size, int stages) {
  return (stages - 1 - stage) * tensor_size;
}

}  // namespace octet::generate
