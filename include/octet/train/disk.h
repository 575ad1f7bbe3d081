// Sizes of the files that a run writes, computed by the code that writes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "octet/model/architecture.h"
#include "octet/weights/tensor_header.h"

namespace octet::train {

/// The facts that determine the sizes of a run's files.
struct RunOutline {
  std::vector<weights::TensorHeader> tensors;  ///< of a checkpoint: Engine::checkpoint_tensors()
  std::string config_yaml;                     ///< stored in a checkpoint
  JsonMember adapters;                         ///< adapter_state(), also stored in a checkpoint; or null
  std::int64_t step = 0;                       ///< of the checkpoint
  int world = 1;
};

/// Sizes of a run's files in bytes. Checkpoints and weights are exact. The other files of the final model
/// (config.json, the tokenizer's files) take at most `model_others`.
struct RunFiles {
  checkpoint::CheckpointSize checkpoint;
  std::int64_t model_weights = 0;
  std::int64_t model_others = 0;
  std::int64_t model() const { return model_weights + model_others; }
};

/// Returns the sizes of a run's files. `architecture`: the model without adapters. A model that is only a
/// shape, not a folder, has no files except its weights.
RunFiles files_of_run(const config::Config& config, const model::Architecture& architecture,
                      const RunOutline& outline);

/// Steps of a run.
struct RunSteps {
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::int64_t of_epoch = 1;
};
/// Returns the number of checkpoints from now to the end, including the last.
std::int64_t saves_of_run(const config::SaveKeys& config, const RunSteps& steps);

/// Checkpoints of a run on the disk, in addition to the present ones.
struct CheckpointCount {
  std::int64_t most =
      0;  ///< at the fullest moment: a new checkpoint is complete before an old one is removed
  std::int64_t at_end = 0;  ///< when the final model is written
};
/// `saves`: checkpoints to come. `there`: present checkpoints that count for save_total_limit.
CheckpointCount checkpoints_of_run(const config::SaveKeys& config, std::int64_t saves,
                                   std::int64_t there = 0);

}  // namespace octet::train
