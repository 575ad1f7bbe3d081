// Starts a run, fresh or from a checkpoint of its output folder.
#pragma once

#include <optional>
#include <string>

#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/config.h"
#include "octet/train/engine.h"

namespace octet::train {

/// A checkpoint that was found damaged while it was read.
struct Damaged {
  std::int64_t step = 0;
  std::string why;
};

/// Returns the configuration of the run that wrote a checkpoint. Ignores the current environment.
config::Config saved_config(const checkpoint::Checkpoint& checkpoint);

/// Returns the checkpoint to resume from, by the configuration and the output folder; nullopt: start fresh.
/// Equal on all ranks. Does not read the tensors; restore() does. If restore() finds damage, call again with
/// `damaged` to get an older checkpoint. Throws Error if the folder holds final weights or only damaged
/// checkpoints, if a named checkpoint is damaged, or if the folder is not writable.
std::optional<std::string> find_start(comm::Channel& channel, const config::Config& config,
                                      const std::optional<Damaged>& damaged = std::nullopt);
/// Whether the configuration names the checkpoint to resume from, so that no other may replace it.
bool names_checkpoint(const config::SaveKeys& config);

/// Returns the newest checkpoint of the output folder and of save_fallback_dir, and the damaged ones.
/// Collective. No save may be in flight.
checkpoint::Found find_newest(comm::Channel& channel, const config::SaveKeys& config,
                              const checkpoint::FindOptions& options = {});

/// Loads parameters, moments and FP8 state from a checkpoint of any world size and stage. Each rank reads the
/// bytes that it needs once, and verifies them. Throws Error on all ranks: usage if the checkpoint does not
/// match the run, no_valid_checkpoint if it is unreadable or damaged. The engine's state is then undefined.
void restore(Engine& engine, const checkpoint::Checkpoint& checkpoint);

/// Returns all slices of the engine's state for a checkpoint. Each element is on one rank.
std::vector<TensorSlice> state_slices(Engine& engine);

/// Logs differences between the configuration of a checkpoint and this one in keys that change results.
void report_differences(const checkpoint::Checkpoint& checkpoint, const config::Config& config);

}  // namespace octet::train
