#include "octet/generate/team.h"

#include <string>

#include "octet/base/error.h"
#include "octet/comm/mesh.h"

namespace octet::generate {
namespace {

void require_ranks(comm::Job& job, int tensor_size, int stages) {
  job.together([&] {
    const std::int64_t ranks = std::int64_t{tensor_size} * stages;
    if (tensor_size >= 1 && stages >= 1 && ranks <= job.size() && job.size() % ranks == 0) return;
    throw Error({.what = "the number of ranks does not fit the split of the model",
                 .expected = "a multiple of " + std::to_string(ranks) + ", tensor_parallel_size " +
                             std::to_string(tensor_size) + " x pipeline_parallel_size " +
                             std::to_string(stages),
                 .found = std::to_string(job.size()) + (job.size() == 1 ? " rank" : " ranks"),
                 .fix = "change the number of ranks (mpirun -np) or the split of the model",
                 .code = ExitCode::usage});
  });
}

/// The ranks of the last stage are the first ranks of a replica.
comm::Group ahead_of_leader(int rank, int replica, const model::Share& share) {
  comm::Group group{.name = "stages ahead", .ranks = {rank}};
  const int size = share.tensor_size * share.stages, leader = replica * size;
  if (share.last() && share.tensor_rank != 0) return group;
  group.ranks = {leader};
  for (int i = share.tensor_size; i < size; ++i) group.ranks.push_back(leader + i);
  return group;
}

}  // namespace

Team::Team(comm::Job& job, Device& device, int tensor_size, int stages, const comm::Carrying& carrying)
    : job_(job) {
  require_ranks(job, tensor_size, stages);
  replicas_ = job.size() / (tensor_size * stages);
  const comm::Mesh mesh(job.size(),
                        {{.name = "data", .size = replicas_}, {"pipeline", stages}, {"tensor", tensor_size}});
  const int rank = job.rank();
  replica_ = mesh.coordinate("data", rank);
  share_ = {.tensor_rank = mesh.coordinate("tensor", rank),
            .tensor_size = tensor_size,
            .stage = stages - 1 - mesh.coordinate("pipeline", rank),
            .stages = stages};
  tensor_ = job.collectives(mesh.group("tensor", rank), device, carrying);
  pipeline_ = job.collectives(mesh.group("pipeline", rank), device, carrying);
  // Timing would take as long as these small collectives.
  tensor_->take_times(false);
  pipeline_->take_times(false);
  ahead_ = job.channel("passes of stages ahead", ahead_of_leader(rank, replica_, share_));
  stage_ranks_ = job.channel("passes of a stage", mesh.group("tensor", rank));
  peers_ = job.channel("peers of replicas", mesh.group("data", rank));
}

std::size_t team_staging_bytes(int tensor_size, int stages, DeviceKind kind) {
  std::size_t bytes = 0;
  for (const int size : {tensor_size, stages}) bytes += size > 1 ? comm::staging_bytes(size, kind) : 0;
  return bytes;
}

}  // namespace octet::generate
