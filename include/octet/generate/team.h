#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/share.h"

namespace octet::generate {

/// Splits the ranks of a job into replicas of a model. Each layer is split among the ranks of a tensor group,
/// and blocks are split into stages. Ranks of a tensor group are consecutive, so they share a node if they
/// fit in one. The first rank of a replica leads it. The leader has the last stage, because it chooses
/// tokens, so stages count down from rank to rank. Decoder documents the work of a team.
class Team {
 public:
  /// Collective over the job. Throws Error (usage) on all ranks unless tensor_size x stages divides their
  /// number. `device` holds hidden states and sums. `device` and `job` outlive the team. `carrying`:
  /// transport of bytes between GPUs.
  Team(comm::Job& job, Device& device, int tensor_size, int stages, const comm::Carrying& carrying = {});

  /// The part of the model on this rank.
  const model::Share& share() const { return share_; }
  int replicas() const { return replicas_; }
  /// This rank's replica.
  int replica() const { return replica_; }
  /// Whether this rank chooses tokens and sends plans to the other ranks of its replica.
  bool leads() const { return share_.last() && share_.tensor_rank == 0; }
  /// Whether a tensor group spans more than one node.
  bool crosses_nodes() const { return tensor_->place().nodes > 1; }

  comm::Job& job() { return job_; }
  /// Collectives of the tensor group, ranked by Share::tensor_rank.
  comm::Collectives& tensor() { return *tensor_; }
  /// Collectives of the ranks with the same piece in all stages. Stage s has rank stages - 1 - s.
  comm::Collectives& pipeline() { return *pipeline_; }
  /// Channel of the leader (rank 0) and all ranks of earlier stages, which get plans before the last stage
  /// needs them. Other ranks of the last stage are alone in their channel.
  comm::Channel& ahead() { return *ahead_; }
  /// Channel of this rank's tensor group, ranked by Share::tensor_rank. Ranks of the last stage get a plan
  /// here when the leader reaches it, because they compute it together.
  comm::Channel& stage_ranks() { return *stage_ranks_; }
  /// Channel of the ranks at the same position in all replicas. For a leader: all leaders.
  comm::Channel& peers() { return *peers_; }

 private:
  comm::Job& job_;
  model::Share share_;
  int replicas_ = 1, replica_ = 0;
  std::unique_ptr<comm::Collectives> tensor_, pipeline_;
  std::unique_ptr<comm::Channel> ahead_, stage_ranks_, peers_;
};

/// Bytes that messages of a team reserve on the device of a rank, in addition to its arena. For plans.
std::size_t team_staging_bytes(int tensor_size, int stages, DeviceKind kind);

}  // namespace octet::generate
