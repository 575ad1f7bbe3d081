// What a run leaves on the disk, by the code that will write it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/save.h"
#include "octet/checkpoint/tensor_header.h"
#include "octet/config/config.h"
#include "octet/model/architecture.h"

namespace octet::train {

/// What decides the sizes of a run's files.
struct RunOutline {
  std::vector<checkpoint::TensorHeader> tensors;  ///< of a checkpoint: Engine::checkpoint_tensors()
  std::string config_yaml;                        ///< that a checkpoint keeps
  JsonMember adapters;                            ///< adapter_state(), which it keeps, too; or null
  std::int64_t step = 0;                          ///< of the checkpoint
  int world = 1;
};

/// Sizes of a run's files in bytes. Checkpoints and weights are exact; what the final model's folder holds
/// beside its weights (config.json, the tokenizer's files) takes at most `model_others`.
struct RunFiles {
  checkpoint::CheckpointSize checkpoint;
  std::int64_t model_weights = 0;
  std::int64_t model_others = 0;
  std::int64_t model() const { return model_weights + model_others; }
};

/// `architecture`: the model's own, without adapters. A model that is a shape alone, and no folder, has no
/// files beside its weights.
RunFiles files_of_run(const config::Config& config, const model::Architecture& architecture,
                      const RunOutline& outline);

/// Steps of a run.
struct RunSteps {
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::int64_t of_epoch = 1;
};
/// Checkpoints that are saved from here to the end, the one at the end included.
std::int64_t saves_of_run(const config::Config& config, const RunSteps& steps);

/// Of the checkpoints of a run, how many more than now lie on the disk.
struct CheckpointCount {
  std::int64_t most = 0;    ///< at the fullest moment: a new one is whole before an old one goes
  std::int64_t at_end = 0;  ///< when the final model is written
};
/// `saves`: those to come; `there`: those that lie there and count for save_total_limit.
CheckpointCount checkpoints_of_run(const config::Config& config, std::int64_t saves, std::int64_t there = 0);

}  // namespace octet::train
