// Ranks that do not exist, for plans of generation.
#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"

namespace octet::cli {

/// A rank of one replica of a model whose layers are split, or the only one of a whole model, on a device
/// that holds nothing: a decoder that it makes is the plan of that rank.
class PlannedRank {
 public:
  /// `stands_for`: of the device. `rank` of tensor_size x stages.
  PlannedRank(DeviceKind stands_for, int rank, int tensor_size, int stages);
  /// Outlived by the rank. Throws as Decoder's constructor does.
  std::unique_ptr<generate::Decoder> decoder(const generate::DecoderOptions& options) const;
  model::Share share() const { return team_ ? team_->share() : model::Share{}; }
  /// What its messages reserve beside the decoder's arena.
  std::size_t staging_bytes() const;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Job> job_;
  std::unique_ptr<comm::Collectives> data_;
  std::unique_ptr<generate::Team> team_;
};

/// The rank of a replica that holds most of a stage: the first of its tensor group.
int first_rank_of_stage(int stage, int tensor_size, int stages);

}  // namespace octet::cli
