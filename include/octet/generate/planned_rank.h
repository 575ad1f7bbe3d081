// Ranks without hardware, for plans of generation.
#pragma once

#include <memory>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"

namespace octet::generate {

/// A rank of one replica with split layers, or the only rank of a whole model. Its device allocates nothing,
/// so its decoder is the memory plan of that rank.
class PlannedRank {
 public:
  /// `stands_for` is the kind of the planned device. `rank` is below tensor_size x stages.
  PlannedRank(DeviceKind stands_for, int rank, int tensor_size, int stages);
  /// Returns a decoder, which must not outlive this object. Throws like Decoder's constructor.
  std::unique_ptr<Decoder> decoder(const DecoderOptions& options) const;
  model::Share share() const { return team_ ? team_->share() : model::Share{}; }
  /// Returns the bytes of the staging buffers, which are not in the decoder's arena.
  std::size_t staging_bytes() const;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Job> job_;
  std::unique_ptr<comm::Collectives> data_;
  std::unique_ptr<Team> team_;
};

/// Returns the first rank of the tensor group of a stage, which holds most of that stage.
int first_rank_of_stage(int stage, int tensor_size, int stages);

}  // namespace octet::generate
