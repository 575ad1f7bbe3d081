#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/model/share.h"

namespace octet::generate {

/// The ranks of a job as replicas of a model whose layers are split: pieces of every layer on the ranks of a
/// tensor group, which follow each other and so share a node where they fit one, and blocks in stages. The
/// first rank of a replica leads it: it has the last stage, since it chooses tokens, so that stages count
/// down from rank to rank. What a Decoder of a team does is said there.
class Team {
 public:
  /// All ranks of the job call it. Throws Error (usage), on all of them, unless tensor_size x stages divides
  /// their number. `device`, where hidden states and sums lie, and `job` outlive the team. `carrying`: who
  /// carries bytes between GPUs.
  Team(comm::Job& job, Device& device, int tensor_size, int stages, const comm::Carrying& carrying = {});

  /// What of the model this rank holds.
  const model::Share& share() const { return share_; }
  int replicas() const { return replicas_; }
  /// This rank's replica.
  int replica() const { return replica_; }
  /// Whether this rank chooses tokens and tells the others of its replica what to compute.
  bool leads() const { return share_.last() && share_.tensor_rank == 0; }
  /// Whether a tensor group stands on more than one node.
  bool crosses_nodes() const { return tensor_->place().nodes > 1; }

  comm::Job& job() { return job_; }
  /// Of the tensor group, by Share::tensor_rank.
  comm::Collectives& tensor() { return *tensor_; }
  /// Of the ranks with the same pieces of all stages: that of stage s is number stages - 1 - s.
  comm::Collectives& pipeline() { return *pipeline_; }
  /// The leader, first, and all ranks of stages before the last one, which hear of passes before it comes to
  /// them; another rank of the last stage is alone here.
  comm::Channel& ahead() { return *ahead_; }
  /// The ranks of this one's tensor group, by Share::tensor_rank. Those of the last stage hear of a pass here
  /// when the leader comes to it, since they compute it together.
  comm::Channel& mates() { return *mates_; }
  /// The ranks that stand where this one does in their replicas: the leaders, for one of them.
  comm::Channel& peers() { return *peers_; }

 private:
  comm::Job& job_;
  model::Share share_;
  int replicas_ = 1, replica_ = 0;
  std::unique_ptr<comm::Collectives> tensor_, pipeline_;
  std::unique_ptr<comm::Channel> ahead_, mates_, peers_;
};

/// Bytes that the messages of a rank of a team reserve on its device beside its arena. For plans.
std::size_t team_staging_bytes(int tensor_size, int stages, DeviceKind kind);

}  // namespace octet::generate
