// How a run starts: afresh, or from a checkpoint of its output folder.
#pragma once

#include <optional>
#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/config.h"
#include "octet/train/engine.h"

namespace octet::train {

/// The checkpoint to go on from, as the configuration and the output folder say; nothing: start afresh. All
/// ranks get the same answer. Throws Error when the folder holds final weights or only damaged checkpoints,
/// when a checkpoint was named that does not hold, or when the folder cannot be written.
std::optional<std::string> find_start(comm::Channel& channel, const config::Config& config);

/// The newest checkpoint that holds, of the output folder and of save_fallback_dir, and what does not hold.
/// Collective; nothing may be saving.
checkpoint::Found find_newest(comm::Channel& channel, const config::Config& config);

/// Fills parameters, moments and FP8 state from a checkpoint written at any world size and stage.
void restore(Engine& engine, const checkpoint::Checkpoint& checkpoint);

/// Everything of the engine that a checkpoint holds, each element on one rank.
std::vector<TensorSlice> state_slices(Engine& engine);

/// Says what differs between the configuration of a checkpoint and this one in keys that decide the numbers.
void report_differences(const checkpoint::Checkpoint& checkpoint, const config::Config& config);

}  // namespace octet::train
